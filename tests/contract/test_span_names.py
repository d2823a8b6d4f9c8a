"""Document, recorder and readers name the same spans, of the same kinds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from megatronapp.core.trace import span_names, values
from megatronapp.core.trace.message_id import Direction
from megatronapp.core.trace.span_names import RECEIVES, SENDS, SpanName, kind_of, message_span

ROOT = Path(__file__).resolve().parents[2]
READERS = [
    *(ROOT / "libs/core/megatronapp/core/trace").glob("*.py"),
    *(ROOT / "libs/cli").rglob("*.py"),
    *(ROOT / "services/trace-collector").rglob("*.py"),
    *(ROOT / "services/detector").rglob("*.py"),
]


def test_the_document_lists_every_span_with_its_kind() -> None:
    rows = re.findall(r"^\| (`.*?`) \| (\w+) \|", (ROOT / "docs/spans.md").read_text(), re.M)

    documented = {name: kind for names, kind in rows for name in re.findall(r"`(\w+)`", names)}

    assert documented == {str(name): kind_of(name).name.lower() for name in SpanName}


def test_the_recorder_writes_these_names_and_kinds() -> None:
    operations = pytest.importorskip("megatronapp.trainer.plugins.scan.operations")

    written = {name: int(kind) for name, kind in zip(operations.NAMES, operations.KINDS, strict=True)}

    assert written == {str(name): int(kind_of(name)) for name in SpanName}


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(("sending", "names"), [(True, SENDS), (False, RECEIVES)])
def test_a_message_is_named_by_direction_and_end(direction: Direction, sending: bool, names) -> None:
    name = message_span(direction, sending=sending)

    assert names[name] is direction
    assert kind_of(name) is values.SpanKind.P2P


def test_no_reader_spells_out_the_name_of_a_message_or_a_collective() -> None:
    """Names like `optimizer` are also those of signals; these are of spans alone."""
    plain = [*SENDS, *RECEIVES, *span_names.COLLECTIVES, SpanName.GRAD_SYNC, SpanName.CHECKPOINT_WRITE]
    spelt = re.compile(r"""["'](""" + "|".join(plain) + r""")["']""")

    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in READERS
        if path.name != "span_names.py"
        for match in spelt.finditer(path.read_text())
    ]

    assert found == []
