"""Tokens, cookies and links that nobody was given, and the API server's word on tokens, whatever it says."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from pydantic import SecretStr

from megatronapp.core.auth import PodClaim, Role, StaticTokens, TokenReviewer, bearer
from megatronapp.core.errors import AuthError, UnavailableError
from megatronapp.gateway.sessions import Sessions, SignInLinks
from tests.attack.inputs import TEXTS, as_json, damaged, mutated
from tests.attack.session import Harm

PODS, VIEWER, OPERATOR = "pods-token", "viewer-token", "operator-token"
CLAIM = PodClaim(job="team/gpt", run="run-1", attempt=1, node="n1")
GOOD = {
    "status": {
        "authenticated": True,
        "audiences": ["megatronapp/team/gpt/run-1"],
        "user": {
            "username": "system:serviceaccount:team:default",
            "extra": {
                "authentication.kubernetes.io/pod-name": ["gpt-1-0-abcde"],
                "authentication.kubernetes.io/node-name": ["n1"],
            },
        },
    }
}


class Tokens:
    name = "tokens"
    at_once = 1

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    async def start(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "token").write_text("own")
        self._static = StaticTokens(SecretStr(PODS), SecretStr(VIEWER), SecretStr(OPERATOR))
        self._says: tuple[int, bytes] = (200, as_json(GOOD))
        transport = httpx.MockTransport(lambda request: httpx.Response(self._says[0], content=self._says[1]))
        client = httpx.AsyncClient(transport=transport, base_url="https://api")
        self._reviewer = TokenReviewer(client, self._static, str(folder / "token"), cache_seconds=0.0)
        self._sessions, self._links = Sessions(b"key" * 11, 1e6), SignInLinks(1e6)
        self._cookie, _ = self._sessions.open(Role.VIEWER)
        self._link = self._links.new(Role.OPERATOR)

    async def stop(self) -> None:
        await self._reviewer.client.aclose()

    async def check(self) -> None:
        """Those who were given a token are let in."""
        self._says = (200, as_json(GOOD))
        await self._static.pod(PODS, CLAIM)
        await self._reviewer.pod("token", CLAIM)
        if await self._static.reader(VIEWER) is not Role.VIEWER or self._sessions.find(self._cookie) is None:
            raise Harm("a viewer is not let in")

    async def execute(self, chance: random.Random) -> None:
        await chance.choice((self._fixed, self._reviewed, self._session))(chance)

    async def _fixed(self, chance: random.Random) -> None:
        token = self._wrong(chance, chance.choice((PODS, VIEWER, OPERATOR)))
        for ask in (self._static.reader(token), self._static.pod(token, CLAIM)):
            try:
                await ask
            except AuthError:
                continue
            raise Harm(f"{token!r} was let in")
        keys = ("authorization", "Authorization", "")
        metadata: Any = [(chance.choice(keys), chance.choice((f"Bearer {token}", token, b"Bearer \xff")))]
        try:
            await self._static.reader(bearer(metadata))
        except AuthError:
            self.seen["fixed: refused"] += 1

    async def _reviewed(self, chance: random.Random) -> None:
        """Let in is only whom the answer names as a pod of the job."""
        answer = mutated(chance, GOOD, chance.choice((0.02, 0.1, 0.4)))
        body = as_json(answer)
        self._says = chance.choice((200, 200, 201, 500)), damaged(chance, body) if chance.random() < 0.2 else body
        try:
            await self._reviewer.pod("token", CLAIM)
        except (AuthError, UnavailableError) as error:
            self.seen[f"review: {type(error).__name__}"] += 1
            return
        self.seen["review: let in"] += 1
        if b'"authenticated": true' not in self._says[1] and answer["status"]["authenticated"] is False:
            raise Harm(f"let in by {self._says[1]!r}")

    async def _session(self, chance: random.Random) -> None:
        value = self._wrong(chance, self._cookie)
        if self._sessions.find(value) is not None and value.strip('"') != self._cookie:
            raise Harm(f"the cookie {value!r} was taken for a session")
        link = self._wrong(chance, self._link)
        if self._links.use(link) is not None:
            raise Harm(f"the link {link!r} was taken")
        self.seen["session and link: refused"] += 1

    def _wrong(self, chance: random.Random, good: str) -> str:
        """Any other text than this one."""
        kind = chance.random()
        if kind < 0.4:
            found = damaged(chance, good.encode()).decode("utf-8", "surrogateescape")
        elif kind < 0.6:
            found = good + chance.choice(TEXTS[2:])
        elif kind < 0.7:
            found = f"{int(time.time()) + 10**9}.{good}"
        else:
            found = chance.choice(TEXTS)
        return "" if found.strip() in (PODS, VIEWER, OPERATOR, good) else found
