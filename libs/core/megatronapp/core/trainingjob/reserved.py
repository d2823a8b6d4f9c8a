"""What the platform itself writes into a job's pods: names that a spec can't give."""

from __future__ import annotations

import posixpath

RESERVED_ENV_PREFIXES = ("PET_", "MASTER_", "MEGATRONAPP_", "TORCHELASTIC_")
RESERVED_ENV = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"})

RESERVED_KEY_PREFIXES = ("megatronapp.io/", "batch.kubernetes.io/")
RESERVED_KEYS = frozenset({"app.kubernetes.io/managed-by", "job-name", "controller-uid"})
"""Labels by which Kubernetes and the operator know a job's pods."""

TRAINER_CONTAINER = "trainer"
TOKEN_VOLUME = "megatronapp-token"  # noqa: S105  # a name
TOKEN_FOLDER = "/var/run/secrets/megatronapp.io"  # noqa: S105  # a folder


def is_reserved_env(name: str) -> bool:
    return name in RESERVED_ENV or name.startswith(RESERVED_ENV_PREFIXES)


def is_reserved_key(key: str) -> bool:
    """Of a label or an annotation."""
    return key in RESERVED_KEYS or key.startswith(RESERVED_KEY_PREFIXES)


def hides_token(mount_path: str) -> bool:
    """Whether a volume mounted there would lie over the token of the pod, or within it."""
    path = posixpath.normpath("/" + mount_path.lstrip("/"))
    if path == "/run" or path.startswith("/run/"):
        # In most images the one is a link to the other.
        path = f"/var{path}"
    token = TOKEN_FOLDER + "/"
    return token.startswith(path.rstrip("/") + "/") or path.startswith(token)
