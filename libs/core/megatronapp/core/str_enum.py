"""StrEnum, of Python 3.11, for the modules that a rank imports too: a training environment may have Python 3.10."""

from __future__ import annotations

import enum
import sys

if sys.version_info >= (3, 11):  # noqa: UP036  (what a rank imports runs on 3.10)
    StrEnum = enum.StrEnum
else:

    class StrEnum(str, enum.Enum):  # noqa: UP042
        """As Python 3.11 has it, for values that are given."""

        __str__ = str.__str__
        __format__ = str.__format__


__all__ = ["StrEnum"]
