"""The error tree. Every error tells the user what to do.

MegatronAppError
├── UsageError            wrong flag, wrong value, wrong combination
│   ├── PortInUseError    somebody else listens there
│   └── PluginMissingError   a plug-in that this image or machine lacks
├── ConfigError           wrong settings or file content
├── NotFoundError         a job, run, file or rank that is not there
├── DataError             a file or message that can't be understood
├── AuthError             no token, or one that does not allow this
│   └── ForbiddenError    a good token, but this belongs to another
├── UnavailableError      a service or disk that does not answer now; try again
└── TrainingError         the training run itself can't go on
"""

from __future__ import annotations


class MegatronAppError(Exception):
    """Base of all expected errors: shown to users as one line, without a traceback."""

    exit_code = 1


class UsageError(MegatronAppError):
    exit_code = 2


class PortInUseError(UsageError):
    """`port` on `host` is in use, or can't be used for another `reason`; `flag` is the setting that chooses another."""

    def __init__(self, host: str, port: int, flag: str, reason: str) -> None:
        reason = reason.partition(" (while attempting to bind")[0]  # Python's, and names host and port once more
        state = "is in use" if "in use" in reason else f"can't be used ({reason})"
        super().__init__(f"port {port} on {host} {state}; choose another with {flag}")
        self.host, self.port, self.reason = host, port, reason

    def chosen_by(self, flag: str) -> PortInUseError:
        """The same, where another flag chooses the port."""
        return PortInUseError(self.host, self.port, flag, self.reason)


class PluginMissingError(UsageError):
    """Starting again on the same image does not help; the exit code is the operator's word for it."""

    exit_code = 69  # EX_UNAVAILABLE of sysexits.h: a support program does not exist


class ConfigError(MegatronAppError):
    exit_code = 2


class NotFoundError(MegatronAppError):
    pass


class DataError(MegatronAppError):
    pass


class AuthError(MegatronAppError):
    pass


class ForbiddenError(AuthError):
    pass


class UnavailableError(MegatronAppError):
    pass


class TrainingError(MegatronAppError):
    pass
