"""What launcher and operator tell a rank through its environment."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from megatronapp.core.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Environment:
    """torchrun's variables, and the MEGATRONAPP_ ones. Without torchrun: one process.

    `run` is empty when nobody named the run; the ranks then agree on a random one.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    launched: bool = False
    run: str = ""
    job: str = "local/train"
    attempt: int = 1
    node: str = ""
    collector_address: str = ""
    token_file: str = ""
    checkpoint_dir: str = ""

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Environment:
        """Raises UsageError when a number is not one."""
        env = os.environ if environ is None else environ
        return cls(
            rank=_number(env, "RANK", 0),
            local_rank=_number(env, "LOCAL_RANK", 0),
            world_size=_number(env, "WORLD_SIZE", 1),
            local_world_size=_number(env, "LOCAL_WORLD_SIZE", 1),
            launched="RANK" in env and "MASTER_ADDR" in env,
            run=env.get("MEGATRONAPP_RUN_ID", ""),
            job=env.get("MEGATRONAPP_JOB", "") or "local/train",
            attempt=_number(env, "MEGATRONAPP_ATTEMPT", 1),
            node=env.get("MEGATRONAPP_NODE_NAME", "") or socket.gethostname(),
            collector_address=env.get("MEGATRONAPP_COLLECTOR_ADDRESS", ""),
            token_file=env.get("MEGATRONAPP_TOKEN_FILE", ""),
            checkpoint_dir=env.get("MEGATRONAPP_CHECKPOINT_DIR", ""),
        )


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "")
    try:
        return int(text) if text else default
    except ValueError as error:
        raise UsageError(f"the environment variable {name} is {text!r}; it must be a whole number") from error
