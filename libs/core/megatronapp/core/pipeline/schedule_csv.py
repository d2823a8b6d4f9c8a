"""Schedules in torchtitan's CSV form: a row a stage, a cell an action: 2F0, 5I3, 5W3, 5B3, (0F8;7B1)OVERLAP_F_B.

The number before the letter is the part of the model, the one behind it the microbatch; F is forward, I the gradient of
the input, W that of the weights, B both. Empty cells are pauses, and actions of communication say nothing new.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from io import StringIO

from megatronapp.core.errors import DataError
from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.core.pipeline.orders import Order
from megatronapp.core.pipeline.placement import Layout, Placement
from megatronapp.core.pipeline.policy import places_of

_ACTION = re.compile(r"(\d+)([FIWB])(\d+)")
_OVERLAP = re.compile(r"\(([^()]*)\)OVERLAP_F_B")
_COMMUNICATION = re.compile(r"\d+(SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)\d*")
_KINDS = {"F": (Kind.FORWARD,), "I": (Kind.BACKWARD,), "W": (Kind.WGRAD,), "B": (Kind.BACKWARD, Kind.WGRAD)}
MAX_PARTS, MAX_MICROBATCHES = 4096, 65536


def write_csv(layout: Layout, orders: Sequence[Sequence[Operation]]) -> str:
    """Orders of all stages as CSV. B is I where the layout splits it."""
    letters = {Kind.FORWARD: "F", Kind.BACKWARD: "I" if layout.split else "B", Kind.WGRAD: "W"}
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for stage, order in enumerate(orders):
        writer.writerow(f"{layout.part(stage, chunk)}{letters[kind]}{microbatch}" for kind, chunk, microbatch in order)
    return text.getvalue()


def read_csv(text: str) -> tuple[Layout, list[Order]]:
    """The layout that a schedule is for, and its orders by stage. Raises DataError with row and cell."""
    rows = [row for row in csv.reader(StringIO(text)) if any(cell.strip() for cell in row)]
    actions = [list(_row_actions(number, row)) for number, row in enumerate(rows, 1)]
    if not actions or not all(actions):
        raise DataError("the schedule has a stage without an operation; each row must hold one stage's actions")
    layout = _layout(actions)
    orders: list[Order] = []
    for stage, row_actions in enumerate(actions):
        order: Order = []
        for part, letter, microbatch in row_actions:
            where, chunk = layout.place(part)
            if where != stage:
                raise DataError(
                    f"row {stage + 1}: part {part} of the model is on stage {where} with {layout.placement}"
                )
            order += [Operation(kind, chunk, microbatch) for kind in _KINDS[letter] if kind in layout.kinds]
        needed = 2 * layout.chunks * layout.microbatches  # W may be left out
        if len(order) < needed:  # before there is a table of all operations: a short file can name large numbers
            raise DataError(
                f"row {stage + 1}: {len(order)} operations, where {layout.chunks} parts a stage and "
                f"{layout.microbatches} microbatches need at least {needed}"
            )
        places_of(layout, order)
        orders.append(order)
    return layout, orders


def _row_actions(row: int, cells: Sequence[str]) -> Iterator[tuple[int, str, int]]:
    for column, cell in enumerate(cells, 1):
        text = cell.strip()
        overlap = _OVERLAP.fullmatch(text)
        for action in overlap[1].split(";") if overlap else [text]:
            if not action or _COMMUNICATION.fullmatch(action):
                continue
            found = _ACTION.fullmatch(action.strip())
            if not found or len(action) > 32:
                raise DataError(f"row {row}, cell {column}: {action[:40]!r} is no action such as 2F0, 5I3, 5W3 or 5B3")
            part, microbatch = int(found[1]), int(found[3])
            if part >= MAX_PARTS or microbatch >= MAX_MICROBATCHES:
                raise DataError(
                    f"row {row}, cell {column}: more than {MAX_PARTS} parts or {MAX_MICROBATCHES} microbatches"
                )
            yield part, found[2], microbatch


def _layout(actions: list[list[tuple[int, str, int]]]) -> Layout:
    stages = len(actions)
    parts = 1 + max(part for row in actions for part, _, _ in row)
    if parts % stages:
        raise DataError(f"{parts} parts of the model on {stages} stages: each row must have equally many")
    first = {part for part, _, _ in actions[0]}
    placement = Placement.V if parts == 2 * stages > 2 and parts - 1 in first else Placement.LOOP
    return Layout(
        stages=stages,
        chunks=parts // stages,
        microbatches=1 + max(microbatch for row in actions for _, _, microbatch in row),
        split=any(letter in "IW" for row in actions for _, letter, _ in row),
        placement=placement,
    )
