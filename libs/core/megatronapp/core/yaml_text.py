"""YAML that somebody else wrote: read within bounds, and refused with one error."""

from __future__ import annotations

from typing import Any

import yaml

from megatronapp.core.errors import ConfigError

MAX_BYTES = 1 << 20
"""Kubernetes takes no larger object."""
MAX_DEPTH = 64
MAX_NODES = 100_000
"""Counted as written out: an alias is as many as what it stands for."""


def load_yaml(text: str | bytes, source: str) -> Any:
    """The document's value; None for an empty one. `source` names it in errors. Raises ConfigError."""
    documents = load_yaml_documents(text, source)
    if len(documents) > 1:
        raise ConfigError(f"{source} holds {len(documents)} documents where one is wanted")
    return documents[0] if documents else None


def load_yaml_documents(text: str | bytes, source: str) -> list[Any]:
    """The values of all documents in a text, empty ones left out. Raises ConfigError."""
    if len(text) > MAX_BYTES:
        raise ConfigError(f"{source} is larger than {MAX_BYTES >> 20} MiB; it is no configuration")
    try:
        written = text.decode() if isinstance(text, bytes) else text
        documents = yaml.load_all(written, _BoundedLoader)
        return [document for document in documents if document is not None]
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source} is not UTF-8 at byte {error.start}") from error
    except (yaml.YAMLError, ValueError, OverflowError, TypeError, KeyError) as error:
        # Besides YAML's own errors: numbers and dates that are none, keys that can't be keys.
        raise ConfigError(f"{source} is not YAML that can be read: {_in_one_line(error)}") from error


def _in_one_line(error: Exception) -> str:
    """What is wrong and where, without the excerpt that YAML's own errors show below it."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return " ".join(str(error).split())
    mark = error.problem_mark or error.context_mark
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return where + ", ".join(part for part in (error.context, error.problem) if part)


class _BoundedLoader(yaml.SafeLoader):
    """Stops at what is deeper or larger than any configuration, before it is built."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = self._nodes = 0
        self._sizes: dict[int, int] = {}
        """Nodes in a node that is complete, by its id."""

    def compose_document(self) -> yaml.Node | None:
        self._sizes.clear()  # nodes of the document before are gone, and their ids with them
        return super().compose_document()

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            node = super().compose_node(parent, index)
            if id(node) not in self._sizes:
                raise yaml.composer.ComposerError(None, None, "an alias within what it stands for", mark)
            self._count(self._sizes[id(node)], mark)
            return node
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, f"nested deeper than {MAX_DEPTH} levels", mark)
        before = self._nodes
        self._count(1, mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        self._sizes[id(node)] = self._nodes - before
        return node

    def _count(self, nodes: int, mark: yaml.Mark) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise yaml.composer.ComposerError(None, None, f"more than {MAX_NODES} values, aliases written out", mark)
