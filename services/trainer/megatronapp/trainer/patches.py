"""Attributes of torch and megatron-core, rebound while a plug-in needs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Patches:
    """Attributes rebound, and how to put them back."""

    _undo: list[Callable[[], None]] = field(default_factory=list)

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Rebind an attribute; one that was inherited is removed again on restore."""
        own = name in vars(owner)
        original = vars(owner).get(name)

        def undo() -> None:
            if own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)

        setattr(owner, name, value)
        self._undo.append(undo)

    def restore(self) -> None:
        while self._undo:
            self._undo.pop()()
