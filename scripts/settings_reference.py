"""Write docs/settings.md: every setting of the services, made from the classes that hold them."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from megatronapp.collector.settings import CollectorSettings
from megatronapp.core.settings import ServiceSettings
from megatronapp.core.tls import VARIABLES
from megatronapp.detector.settings import DetectorSettings
from megatronapp.gateway.settings import GatewaySettings
from megatronapp.operator.settings import OperatorSettings
from megatronapp.trainer.environment import FURTHER_VARIABLES, MEANING, VARIABLE, Environment

DOCUMENT = Path(__file__).resolve().parents[1] / "docs/settings.md"
SERVICES: dict[str, type[ServiceSettings]] = {
    "trace-collector": CollectorSettings,
    "detector": DetectorSettings,
    "gateway": GatewaySettings,
    "operator": OperatorSettings,
}
HEAD = ("| variable | default | values | |", "|---|---|---|---|")
SYMBOLS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
UNITS = ("seconds", "bytes")
SCALES = {"bytes": {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}, "seconds": {"days": 86_400, "hours": 3_600}}
LONGEST_LIST = 5
INTRODUCTION = """\
# Settings

The settings of the services, each with its default, and the variables that training ranks read. Made from the code by
`make reference`; a test fails when the two differ.

A service takes each setting from, in this order:

1. a flag: `--retention-seconds` is `MEGATRONAPP_COLLECTOR_RETENTION_SECONDS`. Secrets have no flag;
2. the environment variable;
3. the YAML file of `--config FILE`: `retention_seconds: 86400`;
4. the default.

An unknown flag or key, a value out of bounds or an empty secret prevents the start; the error names the setting. Lists
are written `a,b`, or as JSON. The unit is part of a name: `_seconds`, `_bytes`.

Elsewhere: the flags of training are in [trainer.md](trainer.md#all-flags), the chart's values in
[its README](../deploy/helm/megatronapp/README.md), the variables of docker compose in [compose.md](compose.md).
`megatronapp COMMAND --help` lists the flags of a command.
"""
COMMON = """\
## Common to all services

`SERVICE` is `COLLECTOR`, `DETECTOR`, `GATEWAY` or `OPERATOR`.
"""
RANKS = """\
## Training ranks and their agent

`megatronapp run` and the operator set these. Who starts ranks by other means sets those that are of use; the agent of a
node reads token and certificates from its own environment, never from a rank.
"""


def document() -> str:
    """What docs/settings.md must hold. Raises ValueError for a setting that nobody has described."""
    common = ServiceSettings.model_fields
    sections = [INTRODUCTION, f"{COMMON}\n{_table(_rows('MEGATRONAPP_SERVICE_', common))}"]
    for service, kind in SERVICES.items():
        own = {name: field for name, field in kind.model_fields.items() if name not in common}
        sections.append(f"## {service}\n\n{_table(_rows(str(kind.model_config['env_prefix']), own))}")
    return "\n".join([*sections, f"{RANKS}\n{_table(_rank_rows())}"])


def _table(rows: Iterable[tuple[str, str, str, str]]) -> str:
    return "\n".join([*HEAD, *(f"| `{variable}` | {' | '.join(cells)} |" for variable, *cells in rows), ""])


def _rows(prefix: str, fields: Mapping[str, FieldInfo]) -> Iterator[tuple[str, str, str, str]]:
    for name, field in fields.items():
        if not field.description:
            raise ValueError(f"{prefix}{name.upper()} has no description; give its Field one")
        unit = next((unit for unit in UNITS if name.endswith(f"_{unit}")), "")
        yield f"{prefix}{name}".upper(), _default(field, unit), _values(field, unit), field.description


def _rank_rows() -> Iterator[tuple[str, str, str, str]]:
    for field in dataclasses.fields(Environment):
        if VARIABLE in field.metadata:
            yield field.metadata[VARIABLE], _shown(field.default), _kind(type(field.default)), field.metadata[MEANING]
    for name, meaning in {**VARIABLES, **FURTHER_VARIABLES}.items():
        yield name, "–", "text", meaning


def _default(field: FieldInfo, unit: str) -> str:
    """What a factory finds depends on the machine: of folders the part below the home, of others nothing."""
    if field.default_factory is None:
        return _shown(field.default, unit)
    found = field.get_default(call_default_factory=True)
    return f"`~/{found.relative_to(Path.home())}`" if isinstance(found, Path) else "see right"


def _shown(value: Any, unit: str = "") -> str:
    if isinstance(value, tuple) and len(value) > LONGEST_LIST:
        return f"{len(value)} names"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if value is None or value in ("", ()):
        return "–"
    if isinstance(value, tuple):
        return f"`{','.join(value)}`"
    return f"`{value}`" if isinstance(value, str) else f"`{_number(value)}`{_scaled(value, unit)}"


def _number(value: float) -> str:
    return str(int(value)) if math.floor(value) == value else str(value)


def _scaled(value: float, unit: str) -> str:
    """Of 67108864 bytes " (64 MiB)"; nothing where the number itself is as plain."""
    for name, size in SCALES.get(unit, {}).items():
        if value >= 2 * size and value % size == 0:
            return f" ({_number(value / size)} {name})"
    return ""


def _values(field: FieldInfo, unit: str) -> str:
    bounds = [
        f"{symbol} {_number(getattr(bound, name))}"
        for bound in field.metadata
        for name, symbol in SYMBOLS.items()
        if getattr(bound, name, None) is not None
    ]
    return ", ".join([unit or _kind(field.annotation), *bounds])


def _kind(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(annotation))
    if get_origin(annotation) is tuple:
        return "list"
    if inner := [kind for kind in get_args(annotation) if kind is not type(None)]:
        return _kind(inner[0])
    if inspect.isclass(annotation) and issubclass(annotation, Enum):
        return ", ".join(f"`{choice.value}`" for choice in annotation)
    names = {bool: "`true`, `false`", int: "whole number", float: "number", Path: "path", SecretStr: "secret"}
    return names.get(annotation, "text")


if __name__ == "__main__":
    DOCUMENT.write_text(document())
