"""A config.json that somebody else wrote: its fields by type, refused with one line."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatronapp.core.errors import DataError, NotFoundError
from megatronapp.core.json_file import load_json_file

CONFIG = "config.json"
MOST = 2**31


@dataclass(frozen=True)
class Fields:
    """`source` names the file in errors. A field that is null counts as one that is not there."""

    values: Mapping[str, Any]
    source: str

    @classmethod
    def read(cls, file: Path) -> Fields:
        """Raises NotFoundError and DataError."""
        if not file.is_file():
            raise NotFoundError(f"{file.parent} holds no {file.name}: give the folder of a Hugging Face model")
        values = load_json_file(file)
        if not isinstance(values, dict):
            raise DataError(f"{file} is no JSON object")
        return cls(values, str(file))

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def is_null(self, name: str) -> bool:
        """Whether it is there, and null, where that is not the default."""
        return name in self.values and self.values[name] is None

    def whole(self, name: str, default: int | None = None, *, least: int = 1, most: int = MOST - 1) -> int:
        value = self._get(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise DataError(f"{self.source}: {name} is {value!r:.80}, not a whole number from {least} to {most}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._get(name, default)
        # Neither nan nor a whole number that no float holds is within the bound.
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
            raise DataError(f"{self.source}: {name} is {value!r:.80}, not a number")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise DataError(f"{self.source}: {name} is {value!r:.80}, not true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._get(name, default)
        if not isinstance(value, str):
            raise DataError(f"{self.source}: {name} is {value!r:.80}, not a text")
        return value

    def part(self, name: str) -> Fields:
        """An object inside; empty where it is not there."""
        value = self._get(name, {})
        if not isinstance(value, dict):
            raise DataError(f"{self.source}: {name} is {value!r:.80}, not an object")
        return Fields(value, f"{self.source}: {name}")

    def expect(self, name: str, *allowed: Any, default: Any) -> None:
        """Raises DataError for a value that the trainer can't express."""
        value = self._get(name, default)
        if not any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in allowed):
            wanted = " or ".join(str(each) for each in allowed)
            raise DataError(f"{self.source}: {name} is {value!r:.80}; the trainer has only {wanted}")

    def _get(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is not None:
            return value
        if default is None:
            raise DataError(f"{self.source} lacks {name}")
        return default
