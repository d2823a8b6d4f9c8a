"""What a viewer may ask of the gateway, and with which code a connection ends that asks for more."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

from megatronapp.core.errors import MegatronAppError
from megatronapp.core.scope.expression import MAX_CHARACTERS, MAX_OPERATIONS
from megatronapp.gateway.settings import GatewaySettings
from megatronapp.v1 import scope_pb2

MAX_NAME = 128
MAX_REASON = 500


class Close(IntEnum):
    TRY_AGAIN = 1013
    BAD_MESSAGE = 4400
    TICKET = 4401
    IDLE = 4408
    TOO_BIG = 4413
    RATE = 4429
    DRAINING = 4503


class ClosedError(MegatronAppError):
    """The connection ends, with a code that says why."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class RefusedError(MegatronAppError):
    """One message is refused; the connection goes on. `code` is one of ScopeRefused."""

    def __init__(self, code: str, text: str, hint: str = "", position: int = 0) -> None:
        super().__init__(text + (f"; {hint}" if hint else ""))
        self.code, self.text, self.hint, self.position = code, text, hint, position


@dataclass
class Rate:
    """A token bucket: `per_second` at length, twice that at once."""

    per_second: float
    clock: Callable[[], float] = time.monotonic
    _tokens: float = field(init=False)
    _at: float = field(init=False)

    def __post_init__(self) -> None:
        self._tokens, self._at = 2 * self.per_second, self.clock()

    def spend(self) -> bool:
        """Whether one more is within it."""
        now = self.clock()
        self._tokens = min(2 * self.per_second, self._tokens + (now - self._at) * self.per_second)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def limits_message(settings: GatewaySettings) -> scope_pb2.ScopeLimits:
    return scope_pb2.ScopeLimits(
        max_message_bytes=settings.scope_max_message_bytes,
        max_frame_bytes=settings.scope_max_frame_bytes,
        max_subscriptions=settings.scope_max_subscriptions,
        max_fps=settings.scope_max_fps,
        max_messages_per_second=settings.scope_max_messages_per_second,
        max_expression_characters=MAX_CHARACTERS,
        max_operations=MAX_OPERATIONS,
    )
