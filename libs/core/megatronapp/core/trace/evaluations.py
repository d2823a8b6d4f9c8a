"""What the evaluations of a job have found. Pure and bounded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from megatronapp.core.trace.limits import MAX_JOB_EVALUATIONS
from megatronapp.core.trace.membership import copied
from megatronapp.v1 import trace_pb2


class Evaluations:
    """One for each step and split, the newest MAX_JOB_EVALUATIONS. Iterates by step, then split."""

    def __init__(self, evaluations: Iterable[trace_pb2.Evaluation] = ()) -> None:
        self._found: dict[tuple[int, str], trace_pb2.Evaluation] = {}
        self.take(evaluations)

    def __iter__(self) -> Iterator[trace_pb2.Evaluation]:
        return (self._found[key] for key in sorted(self._found))

    def take(self, evaluations: Iterable[trace_pb2.Evaluation]) -> None:
        """Of several ranks that report one, that which knows its loss counts."""
        for evaluation in evaluations:
            key = (evaluation.step, evaluation.split)
            if evaluation.HasField("loss") or key not in self._found:
                self._found[key] = copied(evaluation)
            if len(self._found) > MAX_JOB_EVALUATIONS:
                del self._found[min(self._found)]

    def forget_from(self, step: int) -> None:
        """An attempt has begun at this step: it evaluates again what the one before has."""
        for key in [key for key in self._found if key[0] >= step]:
            del self._found[key]
