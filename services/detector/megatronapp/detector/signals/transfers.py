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


def operation_of(key: TransferKey) -> str:
    return key[1] if len(key) == 2 else MESSAGES


class Transfers:
    """Gives each transfer a number when it is first seen, from 0."""

    def __init__(self) -> None:
        self.keys: list[TransferKey] = []
        """By number."""
        self.families: dict[str, list[int]] = defaultdict(list)
        """Numbers of the collectives of an operation, and of all MESSAGES."""
        self._numbers: dict[TransferKey, int] = {}
        self._last: tuple[object, Ints] = (None, np.zeros(0, np.int64))

    def numbers(self, table: StepTable, messages: Messages, collectives: Collectives) -> Ints:
        """Of the step's messages, then of its collectives. Most steps have the same ones as the step before."""
        columns = (messages.sender, messages.peer, messages.direction, collectives.group, collectives.operation)
        same = (table.communicators, table.operations, *(column.tobytes() for column in columns))
        if self._last[0] != same:
            keys: list[TransferKey] = [*messages.keys()]
            for group, operation in zip(collectives.group, collectives.operation, strict=True):
                keys.append((table.communicators[group].id, table.operations[operation]))
            self._last = same, np.array([self._number(key) for key in keys], np.int64)
        return self._last[1]

    def _number(self, key: TransferKey) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self.keys)
            self.families[operation_of(key)].append(len(self.keys))
            self.keys.append(key)
        return self._numbers[key]
