"""What launcher and operator tell a rank through its environment."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from megatronapp.core.errors import UsageError

VARIABLE, MEANING = "variable", "meaning"
GATEWAY_ADDRESS = "MEGATRONAPP_GATEWAY_ADDRESS"
FURTHER_VARIABLES = {
    "MEGATRONAPP_ATTACH": "flags of the plug-ins as a JSON list, for a script that is not ours; empty: not attached",
    "MEGATRONAPP_AGENT_SOCKET": "socket of the node's agent; empty: the ranks of a node start one",
    "MEGATRONAPP_AGENT_PYTHON": "Python of an agent that ranks start; empty: theirs, or an installed command's",
    "MEGATRONAPP_FIRST_NODE_RANK": "number of the first node of a pod's Job, added to PET_NODE_RANK; empty: 0",
    GATEWAY_ADDRESS: "host:port where the agent tells of models (`--scope`), and is told what to show; empty: nowhere",
}
"""What is not read here; docs/settings.md lists it too."""


def variable(name: str, default: Any, meaning: str) -> Any:
    """A field read from an environment variable; docs/settings.md lists it."""
    return dataclasses.field(default=default, metadata={VARIABLE: name, MEANING: meaning})


@dataclass(frozen=True, kw_only=True)
class Environment:
    """torchrun's variables, and the MEGATRONAPP_ ones. Without torchrun: one process."""

    rank: int = variable("RANK", 0, "torchrun's: this rank")
    local_rank: int = variable("LOCAL_RANK", 0, "torchrun's: its number on the node")
    world_size: int = variable("WORLD_SIZE", 1, "torchrun's: ranks of the job")
    local_world_size: int = variable("LOCAL_WORLD_SIZE", 1, "torchrun's: ranks of the node")
    launched: bool = False
    run: str = variable(
        "MEGATRONAPP_RUN_ID", "", "the run, across all its attempts; empty: a random one, on which the ranks agree"
    )
    job: str = variable("MEGATRONAPP_JOB", "local/train", "`<namespace>/<name>` of the job")
    attempt: int = variable("MEGATRONAPP_ATTEMPT", 1, "the number of this start of the run, from 1")
    node: str = variable("MEGATRONAPP_NODE_NAME", "", "the host's name; empty: what the host calls itself")
    collector_address: str = variable(
        "MEGATRONAPP_COLLECTOR_ADDRESS", "", "host:port where traces are sent; empty: nowhere"
    )
    token_file: str = variable("MEGATRONAPP_TOKEN_FILE", "", "file of the token to send with them; empty: none")
    checkpoint_dir: str = variable("MEGATRONAPP_CHECKPOINT_DIR", "", "value of `--save` where that is not given")

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Environment:
        """Raises UsageError when a number is not one."""
        env = os.environ if environ is None else environ
        given = {
            field.name: _value(env, field.metadata[VARIABLE], field.default)
            for field in dataclasses.fields(cls)
            if VARIABLE in field.metadata
        }
        given["node"] = given["node"] or socket.gethostname()
        return cls(launched="RANK" in env and "MASTER_ADDR" in env, **given)


def _value(env: Mapping[str, str], name: str, default: Any) -> Any:
    """Of the default's type. Empty is unset."""
    text = env.get(name, "")
    try:
        return type(default)(text) if text else default
    except ValueError as error:
        raise UsageError(f"the environment variable {name} is {text!r}; it must be a whole number") from error
