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
from megatronapp.core.token_file import read_token

LOOPBACK = ("127.0.0.1", "localhost", "::1")
ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Role(StrEnum):
    VIEWER = "viewer"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class PodClaim:
    """Who a training pod says it is."""

    job: str
    """<namespace>/<name>"""
    run: str
    attempt: int
    node: str


@dataclass(frozen=True, slots=True)
class PodGrant:
    """What a training pod's token allows."""

    may_open_run: bool
    """Whether its word for the run is good. Without, it may speak for a run that its job has opened before."""


class Authenticator(Protocol):
    async def pod(self, token: str, claim: PodClaim) -> PodGrant:
        """Accept a training pod. Raises AuthError, or UnavailableError when nobody can tell."""

    async def reader(self, token: str) -> Role:
        """The role of a person or service that asks. Raises AuthError."""


def bearer(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The bearer token in gRPC metadata; "" without one."""
    for key, value in metadata or ():
        text = value.decode(errors="replace") if isinstance(value, bytes) else value
        if key == "authorization" and text.startswith("Bearer "):
            return text.removeprefix("Bearer ")
    return ""


class AllowAll:
    """For loopback without tokens."""

    async def pod(self, token: str, claim: PodClaim) -> PodGrant:
        return PodGrant(may_open_run=True)

    async def reader(self, token: str) -> Role:
        return Role.OPERATOR


@dataclass(frozen=True)
class StaticTokens:
    """Fixed tokens, outside Kubernetes. One that is not set accepts nobody.

    The pods' token is one for all jobs: whoever has it may speak for any of them.
    """

    pods: SecretStr | None = None
    viewer: SecretStr | None = None
    operator: SecretStr | None = None

    async def pod(self, token: str, claim: PodClaim) -> PodGrant:
        if not _matches(token, self.pods):
            raise AuthError(
                f"the token is missing or wrong for job {claim.job}; set MEGATRONAPP_TOKEN_FILE in its pods"
            )
        return PodGrant(may_open_run=True)

    async def reader(self, token: str) -> Role:
        if _matches(token, self.operator):
            return Role.OPERATOR
        if _matches(token, self.viewer):
            return Role.VIEWER
        raise AuthError("the token is missing or wrong; sign in with a viewer's or operator's token")


def _matches(token: str, expected: SecretStr | None) -> bool:
    """An empty token is nobody's, whatever is expected."""
    wanted = expected.get_secret_value().strip() if expected else ""
    return bool(token and wanted) and hmac.compare_digest(_bytes(token), _bytes(wanted))


def _bytes(text: str) -> bytes:
    """Also of a text that no encoding has: JSON knows half characters."""
    return text.encode(errors="surrogatepass")


@dataclass
class TokenReviewer:
    """Projected service-account tokens of pods, checked by the API server's TokenReview.

    The audience is `megatronapp/<namespace>/<name>/<uid>`, the uid being the run. Namespace, bound pod with its
    attempt, and node must be those of the claim, so that a token made by somebody else for the same audience is
    refused. One whose audience has no uid is of a pod that an earlier version started. Answers are kept for
    `cache_seconds`.
    """

    client: httpx.AsyncClient
    people: StaticTokens
    own_token_file: str = str(ACCOUNT_FOLDER / "token")
    cache_seconds: float = 60.0
    _accepted: dict[tuple[bytes, PodClaim], tuple[float, PodGrant]] = field(default_factory=dict)

    async def pod(self, token: str, claim: PodClaim) -> PodGrant:
        if not token:
            # The API server calls a review without a token a bad request.
            raise AuthError(f"there is no token for job {claim.job}; set MEGATRONAPP_TOKEN_FILE in its pods")
        if not token.isascii():
            raise AuthError(f"the token for job {claim.job} is none of Kubernetes'")
        key = (sha256(_bytes(token)).digest(), claim)
        until, grant = self._accepted.get(key, (0.0, None))
        if grant is not None and until > time.monotonic():
            return grant
        of_job = f"megatronapp/{claim.job}"
        of_run = f"{of_job}/{claim.run}"
        status = await self._review(token, [of_run, of_job])
        audiences = set(_texts(status.get("audiences"))) & {of_run, of_job}
        if status.get("authenticated") is not True or not audiences:
            raise AuthError(
                f"the token does not name run {claim.run} of job {claim.job} as its audience, or has expired"
            )
        _check_pod(_object(status.get("user")), claim)
        grant = PodGrant(may_open_run=of_run in audiences)
        self._accepted = {k: kept for k, kept in self._accepted.items() if kept[0] > time.monotonic()}
        self._accepted[key] = (time.monotonic() + self.cache_seconds, grant)
        return grant

    async def reader(self, token: str) -> Role:
        return await self.people.reader(token)

    async def _review(self, token: str, audiences: list[str]) -> dict[str, Any]:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": audiences},
        }
        try:
            headers = {"Authorization": f"Bearer {read_token(self.own_token_file)}"}
            answer = await self.client.post("/apis/authentication.k8s.io/v1/tokenreviews", json=body, headers=headers)
            answer.raise_for_status()
            status = _object(_object(answer.json()).get("status"))
        except ConfigError as error:
            raise UnavailableError(f"tokens can't be reviewed now: {error}") from error
        except (httpx.HTTPError, ValueError, RecursionError) as error:
            raise UnavailableError(f"the API server can't review tokens now: {type(error).__name__}") from error
        return status


def _check_pod(user: dict[str, Any], claim: PodClaim) -> None:
    """The token's service account, bound pod (`<name>-<attempt>-<index>…`) and node must be those of the claim; the
    node where Kubernetes tells it (1.30 and later). Raises AuthError."""
    namespace, _, name = claim.job.partition("/")
    if not str(user.get("username", "")).startswith(f"system:serviceaccount:{namespace}:"):
        raise AuthError(f"the token is of no service account in the namespace of job {claim.job}")
    pods, nodes = (_extra(user, key) for key in ("pod-name", "node-name"))
    own = re.compile(rf"{re.escape(name)}-(\d+)-\d+(-[a-z0-9]+)?")
    attempts = [int(found[1]) for pod in pods if (found := own.fullmatch(pod))]
    if not attempts:
        raise AuthError(f"the token is bound to no pod of job {claim.job}")
    if claim.attempt not in attempts:
        raise AuthError(
            f"the token of pod {pods[0]} is of attempt {attempts[0]} of job {claim.job}, the pod says {claim.attempt}"
        )
    if nodes and claim.node not in nodes:
        raise AuthError(
            f"the token of pod {pods[0]} of job {claim.job} is of node {nodes[0]}, the pod says {claim.node!r}; "
            "leave MEGATRONAPP_NODE_NAME as the operator sets it"
        )


def _extra(user: dict[str, Any], key: str) -> list[str]:
    return _texts(_object(user.get("extra")).get(f"authentication.kubernetes.io/{key}"))


def _object(value: Any) -> dict[str, Any]:
    """Empty for what is none."""
    return value if isinstance(value, dict) else {}


def _texts(value: Any) -> list[str]:
    """Empty for what is no list; what is in it and no text is left out."""
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


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
