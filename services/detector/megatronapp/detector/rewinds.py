"""A job that goes back: its ranks take steps again that are out already, as after a rollback within the processes.

A summary that is only late has a smaller number than the rank's newest, or is of a step that the rank has not sent yet.
One of a rank that went back has a larger number and a step that it has sent. All ranks go back together, as they train
together: the job has done so when more than half of its ranks say it, and one rank's word moves nobody.
"""

from __future__ import annotations

from typing import Generic, TypeVar

KEPT = 8
"""Steps of a rank that are kept until the others come to theirs: ranks are a step or two apart."""
Sent = TypeVar("Sent")


class Rewinds(Generic[Sent]):
    def __init__(self) -> None:
        self._back: dict[int, dict[int, Sent]] = {}
        self._behind: dict[int, int] = {}

    def note(self, rank: int, step: int, sent: Sent) -> int:
        """The rank has gone back to this step, or on from there. Returns how many of its steps are given up for it."""
        steps = self._back.setdefault(rank, {})
        steps[step] = sent
        if len(steps) <= KEPT:
            return 0
        del steps[min(steps)]
        return 1

    def went_on(self, rank: int) -> int:
        """The rank is ahead of the job again, which has not gone back. Returns how many of its steps are given up."""
        return len(self._back.pop(rank, ())) if self._back else 0

    def forget(self, rank: int) -> None:
        """A new process of the rank's has never been elsewhere."""
        self._back.pop(rank, None)
        self._behind.pop(rank, None)

    def of_most(self, ranks: int) -> bool:
        """Whether more than half of so many ranks have gone back."""
        return 2 * len(self._back) > ranks

    def take(self, newest: dict[int, int]) -> dict[int, dict[int, Sent]]:
        """The job has gone back: what was kept, by rank and step. `newest`: the last step that each rank has sent; who
        has not gone back yet is behind until it does."""
        back, self._back = self._back, {}
        self._behind = {rank: step for rank, step in newest.items() if rank not in back}
        return back

    def is_behind(self, rank: int, step: int, *, newest: bool) -> bool:
        """Whether this step of a rank's is from before the job went back. `newest`: nothing that it sent later has come
        before."""
        last = self._behind.get(rank)
        if last is None:
            return False
        if newest and step <= last:
            del self._behind[rank]
            return False
        return True
