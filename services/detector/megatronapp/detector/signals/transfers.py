"""Transfers: the numbers under which a job's messages and collectives are watched."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from megatronapp.detector.signals.links import Collectives, Messages
from megatronapp.detector.steps import Ints, StepTable

MessageKey = tuple[int, int, int]
"""Sender and receiver (global ranks), index into signals.links.SENDS."""
CollectiveKey = tuple[str, str]
"""Communicator id, operation."""
TransferKey = MessageKey | CollectiveKey
MESSAGES = "messages"
Kind = tuple[str, str]
"""Operation, and the kind of communicator in which it is done; transfers of one kind vary alike."""


def operation_of(key: TransferKey) -> str:
    return key[1] if len(key) == 2 else MESSAGES


class Transfers:
    """Gives each transfer a number when it is first seen, from 0."""

    def __init__(self) -> None:
        self.keys: list[TransferKey] = []
        """By number."""
        self.families: dict[str, list[int]] = defaultdict(list)
        """Numbers of the collectives of an operation, and of all MESSAGES."""
        self._kinds: dict[Kind, int] = {}
        self._numbers: dict[TransferKey, int] = {}
        self._kind_of: list[int] = []
        self._last: tuple[object, Ints] = (None, np.zeros(0, np.int64))

    def kinds(self, numbers: Ints) -> Ints:
        """A number for each transfer, the same for those of one kind."""
        return np.array(self._kind_of, np.int64)[numbers]

    def numbers(self, table: StepTable, messages: Messages, collectives: Collectives) -> Ints:
        """Of the step's messages, then of its collectives. Most steps have the same ones as the step before."""
        columns = (messages.sender, messages.peer, messages.direction, collectives.group, collectives.operation)
        same = (table.communicators, table.operations, *(column.tobytes() for column in columns))
        if self._last[0] != same:
            sent: list[TransferKey] = [*messages.keys()]
            found = [self._number(key, "") for key in sent]
            for group, operation in zip(collectives.group, collectives.operation, strict=True):
                of = table.communicators[group]
                found.append(self._number((of.id, table.operations[operation]), of.kind))
            self._last = same, np.array(found, np.int64)
        return self._last[1]

    def _number(self, key: TransferKey, group_kind: str) -> int:
        if key not in self._numbers:
            kind = operation_of(key), group_kind
            self._kind_of.append(self._kinds.setdefault(kind, len(self._kinds)))
            self._numbers[key] = len(self.keys)
            self.families[operation_of(key)].append(len(self.keys))
            self.keys.append(key)
        return self._numbers[key]
