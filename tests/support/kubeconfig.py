"""Kubeconfigs that tests write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def write_kubeconfig(path: Path, server: str, user: dict[str, Any] | None = None, **cluster: Any) -> str:
    """The path of a kubeconfig with one context, of this server and user."""
    found = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "test", "user": user or {}}],
    }
    path.write_text(yaml.safe_dump(found))
    return str(path)
