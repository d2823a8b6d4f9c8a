"""Discrete events of one replica's step, on whole nanoseconds.

All that happens at one time is taken before any stage chooses what to run next. Messages go out when their operation
ends. A link takes messages one after the other, each for its `occupancy`; they arrive `delay` later. Of those that wait
for it goes first what set out first, or with `by_need` what stands first in the order of the stage that receives it.
With `blocking`, a message takes the receiving stage's time instead: it sets out when the stage has chosen the operation
that needs it.

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


def leave(
    at: int, stage: int, target: int, needs: int, blocking: bool, occupancy: Any, delay: Any,
    arrivals: Any, leaving: Any, events: Any, actors: int,
) -> None:  # fmt: skip
    """What an operation has made leaves its stage then, for the operation `needs` of the target."""
    stages = len(leaving)
    if not blocking and occupancy[target][needs] > 0:
        leaving[stage] = target * len(occupancy[0]) + needs
        heappush(events, at * actors + stage)
        return
    arrives = at if blocking else at + delay[target][needs]
    arrivals[target][needs] = arrives
    heappush(events, arrives * actors + stages + target)


def join(queue: Any, by_need: bool, place: int, number: int, message: int, messages: int) -> None:
    """A message waits for a link: the number-th that set out, for what has this place in its receiver's order."""
    heappush(queue, (place if by_need else number) * messages + message)


def serve(
    now: int, which: int, queue: Any, occupancy: Any, delay: Any, link_free: Any, arrivals: Any, events: Any,
    actors: int,
) -> None:  # fmt: skip
    """A link takes the first of what waits for it, if it can."""
    stages, operations = len(occupancy), len(occupancy[0])
    if len(queue) > 0 and link_free[which] <= now:
        message = heappop(queue) % (stages * operations)
        target, needs = message // operations, message % operations
        link_free[which] = now + occupancy[target][needs]
        arrivals[target][needs] = link_free[which] + delay[target][needs]
        heappush(events, arrivals[target][needs] * actors + stages + target)
    if len(queue) > 0:
        heappush(events, link_free[which] * actors + 2 * stages + which)


def simulate(
    stages: int, chunks: int, microbatches: int, strict: bool, reserve: bool, blocking: bool, by_need: bool,
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
    operations = len(durations[0])
    messages = stages * operations  # target · operations + the operation that needs it
    leaving = [NOTHING for _ in range(stages)]  # the message that is about to set out
    waiting = [list(range(0)) for _ in range(len(link_free))]  # by link, heaps
    set_out = 0
    # Events: time · actors + actor. A message sets out, a stage looks for work, a link is free. At 0 all stages look.
    actors = 2 * stages + len(link_free)
    events = list(range(stages, 2 * stages))
    last = 0
    while len(events) > 0:
        now = events[0] // actors
        awake = list(range(0))
        offered = list(range(0))  # links that may take a message
        while len(events) > 0 and events[0] // actors == now:
            actor = heappop(events) % actors
            if actor >= 2 * stages:
                offered.append(actor - 2 * stages)
                continue
            if actor < stages:
                target, needs = leaving[actor] // operations, leaving[actor] % operations
                which = link[target][needs // microbatches]
                join(waiting[which], by_need, places[target][needs], set_out, leaving[actor], messages)
                set_out += 1
                offered.append(which)
                continue
            stage = actor - stages
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
            leave(at, stage, target, needs, blocking, occupancy, delay, arrivals, leaving, events, actors)
        for which in offered:
            serve(now, which, waiting[which], occupancy, delay, link_free, arrivals, events, actors)
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
            heappush(events, chooses[stage] * actors + stages + stage)
    return last
