"""How far a stage's host is ahead of its GPU.

Where it chooses its next operation (Pace): late enough to know what has come, early enough that the device does not
wait for the choice. Where its order is given (GivenOrder): some operations, as what is launched holds memory.

A host that chooses launches an operation while the one before it runs. Where it chose as soon as it could, when the
one before that has ended, nothing that arrives meanwhile would be known to the choice: that costs a third to all of
what choosing gains (`python -m bench.dispatch_ahead`). So it waits until what is left of the running operation is what
the host needs to choose and launch the next one, whichever it is: a device that overtakes its host waits for every
kernel. What the running one takes is what its lane usually takes, times how much longer than usual its microbatch has
taken in the step's other operations, since sequences differ in length. Where that was wrong by much, it chooses earlier
by as much; and it never waits beyond the operation's end. What is usual is the median of the newest: the first
operations of a process take seconds.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from statistics import median
from typing import NamedTuple, Protocol, Self

from megatronapp.core.pipeline.choosing import CHOOSING_NS
from megatronapp.core.pipeline.operations import Kind, Operation

CHOOSING_SECONDS = CHOOSING_NS / 1e9
POLL_SECONDS = 100e-6
NEWEST = 31
"""Of a lane's operations, that tell what is usual."""

Lane = tuple[Kind, int]


class Mark(Protocol):
    """A place in the stream's work, as torch.cuda.Event with timing."""

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end_event: Self, /) -> float:
        """In milliseconds."""


class Expected(NamedTuple):
    seconds: float
    error_seconds: float
    """By which operations of the lane usually differ from it."""


class Usual:
    """The median of the newest."""

    def __init__(self) -> None:
        self._newest: deque[float] = deque(maxlen=NEWEST)
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        self._newest.append(seconds)
        self.seconds = median(self._newest)


class Durations:
    """What a stage's operations take, on its device and to be launched, learnt over steps."""

    def __init__(self) -> None:
        self._usual: defaultdict[Lane, Usual] = defaultdict(Usual)
        self._errors: defaultdict[Lane, Usual] = defaultdict(Usual)
        self._launches: defaultdict[Lane, Usual] = defaultdict(Usual)
        self._of_microbatch: dict[int, tuple[float, float]] = {}
        """Seconds that its operations took in this step, and usually take."""

    def begin_step(self) -> None:
        self._of_microbatch.clear()

    def expected(self, operation: Operation) -> Expected | None:
        """None: nothing is known of the lane yet."""
        lane = operation[:2]
        if lane not in self._usual:
            return None
        taken, usually = self._of_microbatch.get(operation.microbatch, (0.0, 0.0))
        seconds = self._usual[lane].seconds * (taken / usually if usually else 1.0)
        return Expected(seconds, self._errors[lane].seconds)

    def observe(self, operation: Operation, seconds: float) -> None:
        lane, expected = operation[:2], self.expected(operation)
        self._errors[lane].observe(abs(seconds - expected.seconds) if expected else 0.0)
        usual = self._usual[lane].seconds or seconds
        self._usual[lane].observe(seconds)
        taken, usually = self._of_microbatch.get(operation.microbatch, (0.0, 0.0))
        self._of_microbatch[operation.microbatch] = taken + seconds, usually + usual

    def observe_launch(self, operation: Operation, seconds: float) -> None:
        self._launches[operation[:2]].observe(seconds)

    @property
    def launches(self) -> dict[Lane, float]:
        """Seconds of the host, by lane."""
        return {lane: usual.seconds for lane, usual in self._launches.items()}

    @property
    def lead_seconds(self) -> float:
        """How long before it is to begin an operation is to be chosen."""
        return CHOOSING_SECONDS + max(self.launches.values(), default=0.0)


class _Launched(NamedTuple):
    operation: Operation
    at_seconds: float
    begin: Mark
    end: Mark


class Pace:
    """Of one step. `mark` marks where the stream's work stands."""

    def __init__(
        self,
        mark: Callable[[], Mark],
        durations: Durations,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._mark, self._durations, self._clock, self._sleep = mark, durations, clock, sleep
        self._launched: deque[_Launched] = deque()
        self._newest_end = 0.0
        durations.begin_step()

    def launch(self, operation: Operation, run: Callable[[], None]) -> None:
        at_seconds, begin = self._clock(), self._mark()
        run()
        self._durations.observe_launch(operation, self._clock() - at_seconds)
        self._launched.append(_Launched(operation, at_seconds, begin, self._mark()))

    def wait_until_one_is_left(self) -> None:
        """Of the operations that were launched."""
        while len(self._launched) > 1:
            ended = self._launched.popleft()
            ended.end.synchronize()
            self._newest_end = self._clock()
            self._durations.observe(ended.operation, ended.begin.elapsed_time(ended.end) / 1e3)

    def wait_until_it_ends_soon(self) -> None:
        """The one that is left; at once where nothing is known of its lane."""
        if not self._launched:
            return
        running = self._launched[0]
        expected = self._durations.expected(running.operation)
        if expected is None:
            return
        begun = max(self._newest_end, running.at_seconds)
        until = begun + expected.seconds - expected.error_seconds - self._durations.lead_seconds
        while (left := until - self._clock()) > 0 and not running.end.query():
            self._sleep(min(left, POLL_SECONDS))


class GivenOrder:
    """Of one step: the host launches on until its device has so many operations before it, the running one included."""

    def __init__(self, mark: Callable[[], Mark], most_launched: int) -> None:
        self._mark, self._most_launched = mark, most_launched
        self._ends: deque[Mark] = deque()

    def launch(self, operation: Operation, run: Callable[[], None]) -> None:
        run()
        self._ends.append(self._mark())

    def wait_until_one_may_be_launched(self) -> None:
        while len(self._ends) >= self._most_launched:
            self._ends.popleft().synchronize()
