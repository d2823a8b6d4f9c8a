"""Write the chart's README.md: README.md.gotmpl with the table of values made from values.yaml's `# --` comments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[1] / "deploy/helm/megatronapp"
MARK = "{{ values }}"
KEY = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z][\w.]*):")


def readme() -> str:
    """What README.md must hold. Raises ValueError for a value that nobody has described."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    text = (CHART / "README.md.gotmpl").read_text().replace("{{ version }}", chart["version"])
    return text.replace(MARK, "\n".join(_table((CHART / "values.yaml").read_text())))


def _table(text: str) -> Iterator[str]:
    values = yaml.safe_load(text)
    yield "| value | default | |"
    yield "|---|---|---|"
    for path, description in _described(text):
        default: Any = values
        for key in path:
            default = default[key]
        yield f"| `{'.'.join(path)}` | `{_short(default)}` | {description.replace('|', chr(92) + '|')} |"


def _described(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """(path, description) of every key that has a comment; each leaf must be one, or lie below one."""
    path: list[tuple[int, str]] = []
    description = ""
    covered: tuple[str, ...] = (" ",)
    for line in text.splitlines():
        comment = line.strip()
        if comment.startswith("# -- "):
            description = comment.removeprefix("# -- ")
            continue
        found = KEY.match(line)
        if not found:
            continue
        indent = len(found["indent"])
        path = [*(part for part in path if part[0] < indent), (indent, found["key"])]
        names = tuple(key for _, key in path)
        if description:
            covered = names
            yield names, description
        elif names[: len(covered)] != covered and line.rstrip() != f"{found['indent']}{found['key']}:":
            raise ValueError(f"values.yaml: {'.'.join(names)} has no description; write `# -- …` above it")
        description = ""


def _short(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=1_000).removesuffix("...\n").strip() or '""'


if __name__ == "__main__":
    (CHART / "README.md").write_text(readme())
