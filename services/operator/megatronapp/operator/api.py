"""The API server over HTTP: the few requests that the operator makes, and what it does when one is refused."""

from __future__ import annotations

import asyncio
import base64
import ssl
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import aiohttp
import kopf
import orjson

from megatronapp.core.errors import ConfigError, MegatronAppError, UnavailableError
from megatronapp.operator import json_text

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
TOKEN_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
TIMEOUT_SECONDS = 15.0
MAX_PAUSE_SECONDS = 10.0
ATTEMPTS = 4
WATCH_SECONDS = 240
"""After so long the server ends a watch."""
PAGE = 500

Body = dict[str, Any]


class Change(StrEnum):
    """What an event of a watch says of an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class RefusedError(MegatronAppError):
    """The server does not take an object as it is: it is wrong, not allowed, or has another owner."""


class ConflictError(MegatronAppError):
    """Somebody has changed or made the object in the meantime, or something else that the request depends on."""


class AlreadyExistsError(ConflictError):
    """There is an object of this name."""


class GoneError(MegatronAppError):
    """There is no such object (any more)."""


class Api:
    """Requests to one API server. Overload (429) and failures of the server (5xx) are tried again a few times."""

    def __init__(self, session: aiohttp.ClientSession, token_file: Path | None = None) -> None:
        self._session = session
        self._token_file = token_file

    @classmethod
    def connect(cls, login: kopf.ConnectionInfo) -> Api:
        """To be called where an event loop runs."""
        headers = {"Authorization": f"{login.scheme or 'Bearer'} {login.token}"} if login.token else {}
        in_cluster = TOKEN_FILE if TOKEN_FILE.exists() and login.token else None
        session = aiohttp.ClientSession(
            login.server,
            # As many connections as there are watches and workers.
            connector=aiohttp.TCPConnector(ssl=tls_context(login), limit=0),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
        )
        return cls(session, in_cluster)

    async def close(self) -> None:
        await self._session.close()

    async def get(self, path: str) -> Body:
        return await self._request("GET", path)

    async def list_all(self, path: str, selector: str = "") -> Listing:
        """All objects, page by page, as they were at one moment."""
        query = {"limit": str(PAGE), **({"labelSelector": selector} if selector else {})}
        items: list[Body] = []
        while True:
            page = await self._request("GET", f"{path}?{urlencode(query)}")
            items += page.get("items") or []
            meta = page["metadata"]
            if not meta.get("continue"):
                return Listing(items, int(meta["resourceVersion"]))
            query["continue"] = meta["continue"]

    async def watch(self, path: str, version: int, selector: str = "") -> AsyncGenerator[tuple[Change, Body], None]:
        """What happens to the objects after `version`, until the server ends the watch; a bookmark says only that all
        until its version was told. Raises UnavailableError when that is no longer known, or the connection breaks."""
        query = {
            "watch": "1",
            "resourceVersion": str(version),
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
            **({"labelSelector": selector} if selector else {}),
        }
        patience = aiohttp.ClientTimeout(total=WATCH_SECONDS + TIMEOUT_SECONDS)
        try:
            async with self._session.get(
                f"{path}?{urlencode(query)}", headers=self._headers(JSON), timeout=patience
            ) as response:
                if response.status != 200:
                    raise _error(response.status, _refusal(await response.read()))
                async for line in _lines(response.content):
                    yield _event(line)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UnavailableError(f"a watch has ended: {type(error).__name__}") from error

    async def create(self, path: str, body: Body) -> Body:
        """Unknown fields are refused, as a typo would otherwise be dropped in silence."""
        return await self._request("POST", f"{path}?fieldValidation=Strict", body)

    async def replace(self, path: str, body: Body) -> Body:
        return await self._request("PUT", path, body)

    async def patch(self, path: str, body: Body, kind: str = MERGE_PATCH) -> Body:
        return await self._request("PATCH", path, body, kind)

    async def delete(self, path: str) -> None:
        """With all that belongs to the object, in the background."""
        await self._request("DELETE", path, {"propagationPolicy": "Background"})

    async def _request(self, method: str, path: str, body: Body | None = None, content_type: str = JSON) -> Body:
        data = None if body is None else orjson.dumps(body)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                async with self._session.request(
                    method, path, data=data, headers=self._headers(content_type)
                ) as response:
                    answer = Answer(response.status, response.headers, await response.read())
            except (aiohttp.ClientError, TimeoutError) as error:
                # The server may have done it: whoever asked looks again before it tries again.
                raise UnavailableError(f"the API server does not answer: {type(error).__name__}") from error
            if answer.status != 429 and answer.status < 500:
                return _checked(answer)
            if attempt < ATTEMPTS:
                await asyncio.sleep(_pause(answer, attempt))
        raise UnavailableError(f"the API server answers {answer.status} to {method} {path}")

    def _headers(self, content_type: str) -> dict[str, str]:
        headers = {"Content-Type": content_type}
        if self._token_file is not None:
            # Kubernetes changes the token every hour.
            headers["Authorization"] = f"Bearer {self._token_file.read_text().strip()}"
        return headers


class Listing(NamedTuple):
    items: list[Body]
    version: int
    """At which the list was made (resourceVersion)."""


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


def _checked(answer: Answer) -> Body:
    if answer.status < 300:
        body: Body = json_text.loads(answer.body)
        return body
    raise _error(answer.status, _refusal(answer.body))


def _error(status: int, refusal: Body) -> MegatronAppError:
    """What a Status object means. A 409 may say that an object is there already, or that there was contention on
    another one, such as a ResourceQuota: only the reason tells them apart."""
    message = str(refusal.get("message") or f"the API server answers {status}")
    if status == 404:
        return GoneError(message)
    if status == 409:
        return (AlreadyExistsError if refusal.get("reason") == "AlreadyExists" else ConflictError)(message)
    if status == 410:
        return UnavailableError(f"the API server no longer knows what was asked for: {message}")
    if status == 429 or status >= 500:
        return UnavailableError(message)
    return RefusedError(message)


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Of any length: an object may have more than a megabyte."""
    rest = b""
    async for chunk in stream.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line


def _event(line: bytes) -> tuple[Change, Body]:
    """Raises what the server says instead of an event."""
    event = json_text.loads(line)
    body: Body = event["object"]
    if event["type"] == "ERROR":
        raise _error(int(body.get("code") or 500), body)
    return Change(event["type"]), body


def _refusal(body: bytes) -> Body:
    """The Status object that says why; empty where something else answers."""
    try:
        found = orjson.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _pause(answer: Answer, attempt: int) -> float:
    asked = answer.headers.get("Retry-After", "")
    return min(MAX_PAUSE_SECONDS, float(asked) if asked.isdigit() else 0.2 * 2**attempt)


def tls_context(login: kopf.ConnectionInfo) -> ssl.SSLContext | bool:
    if login.insecure:
        raise ConfigError("the kubeconfig skips the check of the API server's certificate; name its authority there")
    authority = _decoded(login.ca_data)
    context = ssl.create_default_context(
        cafile=str(login.ca_path) if login.ca_path else None, cadata=authority.decode() if authority else None
    )
    if login.certificate_path:
        context.load_cert_chain(str(login.certificate_path), str(login.private_key_path))
    elif login.certificate_data:
        _load_data(context, _decoded(login.certificate_data), _decoded(login.private_key_data))
    return context


def _load_data(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """OpenSSL reads certificates of its own side from files alone."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(certificate + b"\n" + key)
        file.flush()
        context.load_cert_chain(file.name)


def _decoded(data: bytes | str | None) -> bytes:
    if not data:
        return b""
    raw = data.encode() if isinstance(data, str) else data
    return raw if raw.startswith(b"-----") else base64.b64decode(raw)
