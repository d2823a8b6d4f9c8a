"""Structured logs: JSON in pods, readable on a terminal.

In a process that is not ours (docs/attach.md) they are plain lines on standard error, by the standard library alone:
whoever owns the process may have set up structlog for itself, or not have it.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    import structlog

LogFormat = Literal["auto", "json", "console"]


def configure(level: str = "info", fmt: LogFormat = "auto") -> None:
    """Set up logging of the whole process; "auto" is console on a terminal and JSON elsewhere."""
    import structlog

    console = fmt == "console" or (fmt == "auto" and sys.stderr.isatty())
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),  # a line in one write: ranks share a pipe
        cache_logger_on_first_use=False,
    )


def get_logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """A logger that says where it speaks: `log.info("event_name", key=value)`."""
    if _plain:
        return cast("structlog.typing.FilteringBoundLogger", PlainLogger())
    import structlog

    return cast("structlog.typing.FilteringBoundLogger", structlog.get_logger(source=name))


_plain = False


def be_a_guest() -> None:
    """Loggers that are made from here on write plain lines: before the modules that log are imported."""
    global _plain
    _plain = True


class PlainLogger:
    """Warnings and worse, a line each."""

    def debug(self, event: str, **values: Any) -> None:
        pass

    info = debug

    def warning(self, event: str, **values: Any) -> None:
        said = " ".join(f"{key}={value}" for key, value in values.items())
        sys.stderr.write(f"megatronapp: {event.replace('_', ' ')} {said}".rstrip() + "\n")  # in one write

    error = warning

    def exception(self, event: str, **values: Any) -> None:
        self.error(event, **values, reason=repr(sys.exc_info()[1]))
