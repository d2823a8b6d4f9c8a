"""Who a person is: by a token of their own, or by a header that a proxy in front sets.

A name says who acknowledged or commented; what somebody may do follows from the role alone.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from megatronapp.core.auth import Role
from megatronapp.core.errors import ConfigError
from megatronapp.core.logging import get_logger

log = get_logger(__name__)

MAX_NAME = 128
MIN_TOKEN = 16


@dataclass(frozen=True, slots=True)
class Person:
    name: str
    role: Role


class NamedTokens:
    """The file's lines are `name role token`; `#` begins a comment. It is read again when it changes, so that a token
    can be withdrawn without a restart."""

    def __init__(self, path: Path | None) -> None:
        """Raises ConfigError for a file that can't be read or is none."""
        self._path = path
        self._version: tuple[int, int] | None = None
        self._people: dict[bytes, Person] = {}
        if path is not None:
            self._people, self._version = self._read(path), self._stat(path)

    def find(self, token: str) -> Person | None:
        if self._path is None or not token:
            return None
        self._refresh(self._path)
        # Looked up by its hash, so that the time it takes tells nothing of the tokens.
        return self._people.get(_digest(token))

    def _refresh(self, path: Path) -> None:
        try:
            version = self._stat(path)
            if version != self._version:
                self._people, self._version = self._read(path), version
        except ConfigError as error:  # those that were good before stay good, until the file can be read
            log.error("people_file_not_read", error=str(error))

    @staticmethod
    def _stat(path: Path) -> tuple[int, int]:
        try:
            found = path.stat()
        except OSError as error:
            raise ConfigError(f"people_file {path} can't be read: {error.strerror}") from error
        return found.st_mtime_ns, found.st_size

    @staticmethod
    def _read(path: Path) -> dict[bytes, Person]:
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"people_file {path} can't be read: {error}") from error
        people: dict[bytes, Person] = {}
        for number, line in enumerate(lines, start=1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            try:
                name, role, token = line.split()
                person = Person(clean_name(name), Role(role))
            except ValueError:
                raise ConfigError(
                    f"people_file {path}, line {number}: write `name role token`, the role viewer or operator"
                ) from None
            if len(token) < MIN_TOKEN:
                raise ConfigError(f"people_file {path}, line {number}: a token has {MIN_TOKEN} characters at least")
            if _digest(token) in people:
                raise ConfigError(f"people_file {path}, line {number}: the token is another person's too")
            people[_digest(token)] = person
        return people


def clean_name(text: str) -> str:
    """Without what can't be printed, at most MAX_NAME characters: a header may hold anything."""
    printable = "".join(c for c in text if not unicodedata.category(c).startswith(("C", "Z")) or c == " ")
    return printable.strip()[:MAX_NAME]


def _digest(token: str) -> bytes:
    return sha256(token.encode(errors="surrogatepass")).digest()
