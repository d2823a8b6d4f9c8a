"""Discrete events of one replica's step, on whole nanoseconds.

All that happens at one time is taken before any stage chooses what to run next. Messages go out when their operation
ends. A link takes messages one after the other, each for its `occupancy`; they arrive `delay` later. With `blocking`, a
message takes the receiving stage's time instead: it sets out when the stage has chosen the operation that needs it.

Everything is plain arithmetic over sequences of whole numbers, so that this file and the policy run as they are, on
lists, or compiled, on arrays (cli/pipeline/compiled.py); a test holds both to the same result.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

from megatronapp.core.pipeline.lanes import end, start
from megatronapp.core.pipeline.policy import NOTHING, choose


def deliver(now: int, link: int, occupancy: int, delay: int, link_free: Any) -> int:
    """When a message arrives that sets out now. link −1: one of its own."""
    begins = now
    if link >= 0:
        begins = max(now, link_free[link])
        link_free[link] = begins + occupancy
    return begins + occupancy + delay


def simulate(
    stages: int, chunks: int, microbatches: int, strict: bool, reserve: bool, blocking: bool,
    pending: int, launch: int, caps: Any, places: Any, durations: Any, lead: Any, host: Any,
    next_stage: Any, next_lane: Any, link: Any, occupancy: Any, delay: Any,
    link_free: Any, arrivals: Any, begins: Any, started: Any, held: Any,
) -> int:  # fmt: skip
    """Run until nothing happens any more. Returns when the last operation ended.

    A stage chooses `lead` before the running operation ends, and not before it begins; the chosen one begins no sooner
    than `launch` later, and does not end before the host has launched it, which takes `host`. What a stage gives itself
    it knows when it chooses; others get it when the operation ends. With `strict` the host waits for nothing.

    By stage and operation: places, durations, occupancy, delay (of the message that the operation needs), arrivals
    (changed), begins (filled in). By stage and lane: next_stage and next_lane that need the result (−1: none), link (of
    the message), lead (of the running operation), host, started (changed). By stage: caps, held (changed).
    """
    running = [NOTHING for _ in range(stages)]
    chooses = [0 for _ in range(stages)]  # when the next one is chosen
    free = [0 for _ in range(stages)]  # when what runs has ended
    launched = [0 for _ in range(stages)]  # when the host has launched all that was chosen
    events = list(range(stages))  # time · stages + stage; at 0 every stage looks for work
    last = 0
    while len(events) > 0:
        now = events[0] // stages
        awake = list(range(0))
        while len(events) > 0 and events[0] // stages == now:
            stage = heappop(events) % stages
            awake.append(stage)
            lane = running[stage]
            if lane == NOTHING or chooses[stage] != now:
                continue
            running[stage] = NOTHING
            last = max(last, free[stage])
            end(started[stage], held[stage], chunks, lane, pending)
            target = next_stage[stage][lane]
            if target < 0:
                continue
            there = next_lane[stage][lane]
            needs = there * microbatches + started[stage][lane] - 1
            at = now if target == stage else free[stage]
            if not blocking:
                at = deliver(at, link[target][there], occupancy[target][needs], delay[target][needs], link_free)
            arrivals[target][needs] = at
            heappush(events, at * stages + target)
        awake.sort()
        for stage in awake:
            if running[stage] != NOTHING:
                continue
            lane = choose(
                now, strict, reserve, chunks, microbatches,
                started[stage], held[stage], caps[stage], places[stage], arrivals[stage],
            )  # fmt: skip
            if lane == NOTHING:
                continue
            number = lane * microbatches + started[stage][lane]
            sets_out = launched[stage] if strict else now
            launched[stage] = sets_out + host[stage][lane]
            begin = max(now, free[stage], sets_out + launch, launched[stage] - durations[stage][number])
            if blocking and lane < 2 * chunks:
                begin = deliver(begin, link[stage][lane], occupancy[stage][number], delay[stage][number], link_free)
            start(started[stage], held[stage], chunks, lane)
            begins[stage][number] = begin
            running[stage] = lane
            free[stage] = begin + durations[stage][number]
            chooses[stage] = max(begin, launched[stage], free[stage] - lead[stage][lane])
            heappush(events, chooses[stage] * stages + stage)
    return last
