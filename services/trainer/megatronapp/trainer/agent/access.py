"""How a node's agent is let in by the collector. It comes from the agent's own environment, never from a rank."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from megatronapp.core.tls import ClearTextWarning, ClientTls
from megatronapp.trainer.environment import GATEWAY_ADDRESS


@dataclass(frozen=True, slots=True)
class Access:
    token_file: str = ""
    """Read anew for each connection. Empty: no token."""
    tls: ClientTls = field(default_factory=ClientTls)
    gateway_address: str = ""
    """host:port where models are shown; empty: nowhere."""
    clear_text: ClearTextWarning = field(default_factory=ClearTextWarning, compare=False)
    """One for the streams of all ranks."""

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> Access:
        return cls(
            environment.get("MEGATRONAPP_TOKEN_FILE", ""),
            ClientTls.of_environment(environment),
            environment.get(GATEWAY_ADDRESS, ""),
        )
