"""Who may speak: training pods with a token that names their job, people with a token that gives a role."""

from __future__ import annotations

import hmac
import os
import re
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import httpx
from pydantic import SecretStr

from megatronapp.core.errors import AuthError, ConfigError, UnavailableError
from megatronapp.core.settings import ServiceSettings

LOOPBACK = ("127.0.0.1", "localhost", "::1")
ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Role(StrEnum):
    VIEWER = "viewer"
    OPERATOR = "operator"


class Authenticator(Protocol):
    async def pod(self, token: str, job: str) -> None:
        """Accept a training pod of `<namespace>/<name>`. Raises AuthError, or UnavailableError when nobody can tell."""

    async def reader(self, token: str) -> Role:
        """The role of a person or service that asks. Raises AuthError."""


def bearer(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The bearer token in gRPC metadata; "" without one."""
    for key, value in metadata or ():
        text = value.decode() if isinstance(value, bytes) else value
        if key == "authorization" and text.startswith("Bearer "):
            return text.removeprefix("Bearer ")
    return ""


def read_token(file: str) -> str:
    """A token file's content, read anew each time since Kubernetes rotates it; "" for no file."""
    return Path(file).read_text().strip() if file else ""


class AllowAll:
    """For loopback without tokens."""

    async def pod(self, token: str, job: str) -> None:
        return

    async def reader(self, token: str) -> Role:
        return Role.OPERATOR


@dataclass(frozen=True)
class StaticTokens:
    """Fixed tokens, outside Kubernetes. One that is not set accepts nobody."""

    pods: SecretStr | None = None
    viewer: SecretStr | None = None
    operator: SecretStr | None = None

    async def pod(self, token: str, job: str) -> None:
        if not _same(token, self.pods):
            raise AuthError(f"the token is missing or wrong for job {job}; set MEGATRONAPP_TOKEN_FILE in its pods")

    async def reader(self, token: str) -> Role:
        if _same(token, self.operator):
            return Role.OPERATOR
        if _same(token, self.viewer):
            return Role.VIEWER
        raise AuthError("the token is missing or wrong; sign in with a viewer's or operator's token")


def _same(token: str, expected: SecretStr | None) -> bool:
    if expected is None:
        return False
    return hmac.compare_digest(token.encode(), expected.get_secret_value().encode())


@dataclass
class TokenReviewer:
    """Projected service-account tokens of pods, checked by the API server's TokenReview.

    The audience is `megatronapp/<namespace>/<name>`; namespace and bound pod must be the job's own, so that a token
    made by somebody else for the same audience is refused. Answers are kept for `cache_seconds`.
    """

    client: httpx.AsyncClient
    people: StaticTokens
    own_token_file: str = str(ACCOUNT_FOLDER / "token")
    cache_seconds: float = 60.0
    _accepted: dict[tuple[bytes, str], float] = field(default_factory=dict)

    async def pod(self, token: str, job: str) -> None:
        if not token:
            # The API server calls a review without a token a bad request.
            raise AuthError(f"there is no token for job {job}; set MEGATRONAPP_TOKEN_FILE in its pods")
        key = (sha256(token.encode()).digest(), job)
        if self._accepted.get(key, 0.0) > time.monotonic():
            return
        namespace, _, name = job.partition("/")
        status = await self._review(token, f"megatronapp/{job}")
        if not status.get("authenticated") or f"megatronapp/{job}" not in status.get("audiences", []):
            raise AuthError(f"the token does not name job {job} as its audience, or has expired")
        if not _of_job(status.get("user", {}), namespace, name):
            raise AuthError(f"the token is bound to no pod of job {job}")
        self._accepted = {k: until for k, until in self._accepted.items() if until > time.monotonic()}
        self._accepted[key] = time.monotonic() + self.cache_seconds

    async def reader(self, token: str) -> Role:
        return await self.people.reader(token)

    async def _review(self, token: str, audience: str) -> dict[str, Any]:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [audience]},
        }
        headers = {"Authorization": f"Bearer {read_token(self.own_token_file)}"}
        try:
            answer = await self.client.post("/apis/authentication.k8s.io/v1/tokenreviews", json=body, headers=headers)
            answer.raise_for_status()
        except httpx.HTTPError as error:
            raise UnavailableError(f"the API server can't review tokens now: {type(error).__name__}") from error
        status: dict[str, Any] = answer.json().get("status", {})
        return status


def _of_job(user: dict[str, Any], namespace: str, name: str) -> bool:
    """Whether the token's service account and bound pod (`<name>-<attempt>-<index>…`) belong to the job."""
    in_namespace = str(user.get("username", "")).startswith(f"system:serviceaccount:{namespace}:")
    pods = (user.get("extra") or {}).get("authentication.kubernetes.io/pod-name", [])
    own = re.compile(rf"{re.escape(name)}-\d+-\d+(-[a-z0-9]+)?")
    return in_namespace and any(own.fullmatch(pod) for pod in pods)


def authenticator(settings: ServiceSettings) -> Authenticator:
    """What the settings ask for. Raises ConfigError where that would leave a door open or shut for all."""
    tokens = StaticTokens(settings.token, settings.viewer_token, settings.operator_token)
    if settings.auth == "loopback":
        if settings.host not in LOOPBACK:
            raise ConfigError(
                f"listening on {settings.host} without tokens is refused; set auth to static or kubernetes"
            )
        return AllowAll()
    if settings.auth == "static":
        if not any((settings.token, settings.viewer_token, settings.operator_token)):
            raise ConfigError("auth is static but no token is set; set token, viewer_token or operator_token")
        return tokens
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigError("auth is kubernetes but this is no pod; set auth to static or loopback")
    context = ssl.create_default_context(cafile=str(ACCOUNT_FOLDER / "ca.crt"))
    return TokenReviewer(httpx.AsyncClient(base_url=f"https://{host}:{port}", verify=context, timeout=5), tokens)
