"""Commands whose options are the fields of a dataclass: groups of options that commands share are its base classes.

Each class's first line of documentation is the heading under which `--help` shows the fields that it declares.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import copy
from dataclasses import fields
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

T = TypeVar("T")


def command(kind: type[T], run: Callable[[T], None]) -> Callable[..., None]:
    """`run`, for typer, which reads names, types and defaults from a function's signature."""

    def called(**given: Any) -> None:
        run(kind(**given))

    hints = get_type_hints(kind, include_extras=True)
    called.__name__, called.__doc__, called.__annotations__ = run.__name__, run.__doc__, {}
    called.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=_under_heading(hints[field.name], _heading(kind, field.name)),
            )
            for field in fields(kind)  # type: ignore[arg-type]
        ]
    )
    return called


def _heading(kind: type, name: str) -> str:
    [declared_by] = [each for each in kind.__mro__ if name in inspect.get_annotations(each)]
    return inspect.getdoc(declared_by).partition("\n")[0].rstrip(".")  # type: ignore[union-attr]


def _under_heading(annotation: Any, heading: str) -> Any:
    of, option = get_args(annotation)
    option = copy(option)
    option.rich_help_panel = heading
    return Annotated[of, option]
