"""What all ranks do at the same border: documents that any of them has heard, taken up by all in the same order.

The border itself is agreed on by `Borders`, through the store and without a collective. What comes to it is agreed on
likewise: a rank writes its document under the next number, and the first one that comes to the border seals how many
count; whatever is written after that waits for the next border, which its writer asks for again. A rank never waits for
another one here, but for a document whose number was given out a moment ago.

Who publishes what another rank has published before adds no document, but has a border all the same: what it was told
itself, and the others were not, comes into force there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from torch._C._distributed_c10d import PrefixStore, Store

from megatronapp.core.errors import DataError

Document = dict[str, Any]
MAX_DOCUMENT_BYTES = 256 << 10


class Agreement:
    """For the training thread."""

    def __init__(self, store: Store, rank: int, request_border: Callable[[], None]) -> None:
        """Every rank makes one, and calls `take` at each border."""
        self._store = PrefixStore("scope", store)
        self._rank = rank
        self._request_border = request_border
        self._accepted = self._rounds = self._published = 0
        self._deleted = {"document": 1, "round": 0}
        """By kind, the first number that is there."""
        self._own = 0
        """Number of the newest document of this rank's."""

    def publish(self, identifier: str, document: Document) -> None:
        """To all ranks, once: whoever publishes the same identifier after that adds nothing to it. A border follows in
        any case. Raises DataError for a document that is too large."""
        text = json.dumps(document)
        if len(text) > MAX_DOCUMENT_BYTES:
            raise DataError(f"a command of {len(text)} bytes; at most {MAX_DOCUMENT_BYTES}: shorten it")
        mine = f"{self._rank}.{self._own}"
        name = hashlib.blake2s(identifier.encode(errors="surrogatepass"), digest_size=16).hexdigest()
        if self._store.compare_set(f"id/{name}", "", mine).decode() == mine:
            self._own = self._store.add("count", 1)
            self._store.set(f"document/{self._own}", text)
        self._store.add("published", 1)
        self._request_border()

    @property
    def settled(self) -> bool:
        """Whether all that this rank has published was taken up."""
        return self._own <= self._accepted

    def pending(self) -> bool:
        """Whether somebody has published since the last border or round."""
        return int(self._store.add("published", 0)) > self._published

    def take(self) -> list[Document]:
        """At a border, or in a round of a pause: what all ranks take up now."""
        self._forget()
        self._published = int(self._store.add("published", 0))
        sealed = self._sealed(str(self._count()))
        documents = self._read(int(sealed))
        if not self.settled:
            self._request_border()
        return documents

    # -- a pause: rank 0 says when the others go on --

    def open_round(self, note: str) -> list[Document]:
        """Rank 0: all ranks go on, with what was published so far and a note that they read too."""
        self._published = int(self._store.add("published", 0))
        sealed = self._sealed(f"{self._count()} {note}")
        return self._read(int(sealed.split()[0]))

    def opened_round(self) -> tuple[str, list[Document]] | None:
        """The others: the note and the documents, once rank 0 has opened the round."""
        if not self._store.check([f"round/{self._rounds}"]):
            return None
        count, _, note = self._sealed("").partition(" ")
        return note, self._read(int(count))

    def _count(self) -> int:
        return int(self._store.add("count", 0))

    def _sealed(self, proposal: str) -> str:
        """What the first one to come here has proposed."""
        key = f"round/{self._rounds}"
        text = self._store.compare_set(key, "", proposal).decode() if proposal else self._store.get(key).decode()
        self._rounds += 1
        return str(text)

    def _read(self, until: int) -> list[Document]:
        found = [json.loads(self._store.get(f"document/{number}")) for number in range(self._accepted + 1, until + 1)]
        self._accepted = until
        return found

    def _forget(self) -> None:
        """Since the last border all ranks have taken part in a step: nobody reads what came to it any more."""
        if self._rank:
            return
        for kind, last in (("document", self._accepted), ("round", self._rounds - 1)):
            for number in range(self._deleted[kind], last + 1):
                self._store.delete_key(f"{kind}/{number}")
            self._deleted[kind] = last + 1
