"""The containers of a rendered pod as processes of this host: each has its own command and environment, and of the
others no more than the folders of the volumes that both mount."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PYTHON = "python"


@dataclass(frozen=True)
class PodFolder:
    """A pod whose volumes lie below a folder. `fields`: what Kubernetes fills in, by the path of the field."""

    folder: Path
    fields: Mapping[str, str]

    def container(self, rendered: Mapping[str, Any]) -> Container:
        mounts = {each["mountPath"]: self.folder / each["name"] for each in rendered["volumeMounts"]}
        for place in mounts.values():
            place.mkdir(exist_ok=True)
        environment = {each["name"]: _placed(self._value(each), mounts) for each in rendered["env"]}
        return Container([_placed(word, mounts) for word in rendered["command"]], environment, mounts)

    def _value(self, variable: Mapping[str, Any]) -> str:
        if "value" in variable:
            return str(variable["value"])
        return self.fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]


@dataclass(frozen=True)
class Container:
    command: Sequence[str]
    environment: Mapping[str, str]
    mounts: Mapping[str, Path]
    """Where each path that it mounts lies on this host."""

    def start(self, command: Sequence[str] = (), **options: Any) -> subprocess.Popen[str]:
        """Its own command, or another one in its environment; with this interpreter for the image's."""
        first, *rest = command or self.command
        return subprocess.Popen(
            [sys.executable if first == PYTHON else first, *rest],
            env=dict(self.environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **options,
        )


def _placed(text: str, mounts: Mapping[str, Path]) -> str:
    """A path below one that is mounted, as it is here; any other text as it is."""
    for path in sorted(mounts, key=len, reverse=True):
        if text == path or text.startswith(f"{path}/"):
            return f"{mounts[path]}{text.removeprefix(path)}"
    return text
