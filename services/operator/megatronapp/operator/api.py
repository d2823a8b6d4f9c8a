"""The few requests that the operator makes of the API server, and what it does when one is refused.

The official client, `kubernetes.aio`, knows the server, its certificate, proxies and tokens, and sends; of its modules
for each kind and its retries nothing is used: it tries neither POST nor PATCH again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from enum import StrEnum
from importlib.metadata import version
from typing import Any, NamedTuple
from urllib.parse import urlencode

import aiohttp
import orjson
from kubernetes.aio.client import ApiClient

from megatronapp.core.errors import ConfigError, MegatronAppError, UnavailableError
from megatronapp.core.logging import get_logger
from megatronapp.operator import json_text
from megatronapp.operator.login import Login

log = get_logger(__name__)

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
TIMEOUT_SECONDS = 15.0
MAX_PAUSE_SECONDS = 10.0
ATTEMPTS = 4
WATCH_SECONDS = 240
"""After so long the server ends a watch."""
SILENCE_SECONDS = 75.0
"""A watch that says nothing for so long is opened anew. The server sends a bookmark each minute, so that it may well
have stopped, or the network between, without a word."""
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

    def __init__(self, login: Login) -> None:
        self._login = login
        try:
            self._client = ApiClient(login.configuration)
        except OSError as error:
            raise ConfigError(f"the certificates for the API server can't be used: {error}") from error
        self._client.user_agent = f"megatronapp-operator/{version('megatronapp')}"

    async def close(self) -> None:
        await self._client.close()

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
        """What happens to the objects after `version`, until the server ends the watch or has been silent for long; a
        bookmark says only that all until its version was told. Raises UnavailableError when that is no longer known, or
        the connection breaks."""
        query = {
            "watch": "1",
            "resourceVersion": str(version),
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
            **({"labelSelector": selector} if selector else {}),
        }
        patience = aiohttp.ClientTimeout(total=WATCH_SECONDS + TIMEOUT_SECONDS, sock_read=SILENCE_SECONDS)
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                response = await self._send("GET", f"{path}?{urlencode(query)}", patience)
            async with response:
                if response.status != 200:
                    raise _error(response.status, _refusal(await response.read()))
                async for line in _lines(response.content):
                    yield _event(line)
        except aiohttp.SocketTimeoutError:
            log.info("watch_silent", path=path, seconds=SILENCE_SECONDS)
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
        for attempt in range(1, ATTEMPTS + 1):
            answer = await self._answer(method, path, body, content_type)
            if answer.status != 429 and answer.status < 500:
                return _checked(answer)
            if attempt < ATTEMPTS:
                await asyncio.sleep(_pause(answer, attempt))
        raise UnavailableError(f"the API server answers {answer.status} to {method} {path}")

    async def _answer(self, method: str, path: str, body: Body | None, content_type: str) -> Answer:
        patience = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        try:
            response = await self._send(method, path, patience, body, content_type)
            return Answer(response.status, response.headers, await response.read())
        except (aiohttp.ClientError, TimeoutError) as error:
            # The server may have done it: whoever asked looks again before it tries again.
            raise UnavailableError(f"the API server does not answer: {type(error).__name__}") from error

    async def _send(
        self,
        method: str,
        path: str,
        patience: aiohttp.ClientTimeout,
        body: Body | None = None,
        content_type: str = JSON,
    ) -> aiohttp.ClientResponse:
        """The answer, its body not read yet. With another token, once, where the server refuses the first."""
        for _attempt in range(2):
            _, url, headers, *_ = await self._client.param_serialize(
                method, path, header_params={"Content-Type": content_type}, auth_settings=["BearerToken"]
            )
            answer = await self._client.call_api(method, url, headers, body, _request_timeout=patience)
            response: aiohttp.ClientResponse = answer.response
            if response.status != 401 or not await self._login.renew(headers.get("authorization")):
                break
            response.release()
        return response


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
    if status == 401:
        return RefusedError(f"the API server does not know who asks; correct the user in the kubeconfig: {message}")
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
