"""Everything that is attacked, and its share of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.attack.agent import Agent
from tests.attack.files import Files
from tests.attack.kubernetes import Operator
from tests.attack.platform import Stack
from tests.attack.receivers import Receivers
from tests.attack.redis import Redis
from tests.attack.scope import ScopeDoors
from tests.attack.session import Target
from tests.attack.tokens import Tokens

TARGETS: Mapping[str, tuple[Callable[[], Target], float]] = {
    "platform": (Stack, 0.3),
    "scope": (ScopeDoors, 0.1),
    "operator": (Operator, 0.2),
    "files": (Files, 0.1),
    "tokens": (Tokens, 0.1),
    "receivers": (Receivers, 0.1),
    "redis": (Redis, 0.07),
    "agent": (Agent, 0.03),
}
PROGRAMS: Mapping[str, str] = {"redis": "redis-server"}
"""What a target needs beside Python."""
