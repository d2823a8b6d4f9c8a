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
from typing import Any, NamedTuple

from megatronapp.core.pipeline.lanes import end, start
from megatronapp.core.pipeline.policy import NOTHING, choose


class Rules(NamedTuple):
    """Single numbers of a simulation; `pending` as in lanes, `launch` in ns.

    Messages are numbered by target · operations + the operation that needs them. Actors of events: a stage's message
    that sets out, a stage that looks for work, a link that is free.
    """

    stages: int
    chunks: int
    microbatches: int
    operations: int
    """Of a stage."""
    actors: int
    strict: bool
    reserve: bool
    blocking: bool
    by_need: bool
    pending: int
    launch: int


def simulate(
    rules: Rules, caps: Any, places: Any, durations: Any, lead: Any, host: Any,
    next_stage: Any, next_lane: Any, link: Any, occupancy: Any, delay: Any,
    link_free: Any, arrivals: Any, begins: Any, started: Any, held: Any, free: Any,
) -> None:  # fmt: skip
    """Run until nothing happens any more.

    A stage chooses `lead` before the running operation ends, and not before it begins; the chosen one begins no sooner
    than `launch` later, and does not end before the host has launched it, which takes `host`. What a stage gives itself
    it knows when it chooses; others get it when the operation ends. With `strict` the host waits for nothing.

    By stage and operation: places, durations, occupancy, delay (of the message that the operation needs), arrivals
    (changed), begins (filled in). By stage and lane: next_stage and next_lane that need the result (−1: none), link (of
    the message), lead (of the running operation), host, started (changed). By stage: caps, held (changed), free (when
    what it ran last has ended, filled in).
    """
    stages, chunks, microbatches, actors = rules.stages, rules.chunks, rules.microbatches, rules.actors
    running = [NOTHING for _ in range(stages)]
    chooses = [0 for _ in range(stages)]  # when the next one is chosen
    launched = [0 for _ in range(stages)]  # when the host has launched all that was chosen
    leaving = [NOTHING for _ in range(stages)]  # the message that is about to set out
    waiting = [list(range(0)) for _ in range(len(link_free))]  # by link, heaps
    set_out = 0
    events = list(range(stages, 2 * stages))  # time · actors + actor; at 0 all stages look
    while len(events) > 0:
        now = events[0] // actors
        awake = list(range(0))
        offered = list(range(0))  # links that may take a message
        while len(events) > 0 and events[0] // actors == now:
            actor = heappop(events) % actors
            if actor >= 2 * stages:
                offered.append(actor - 2 * stages)
            elif actor < stages:
                offered.append(join(leaving[actor], set_out, rules, places, link, waiting))
                set_out += 1
            else:
                stage = actor - stages
                awake.append(stage)
                lane = running[stage]
                if lane != NOTHING and chooses[stage] == now:
                    running[stage] = NOTHING
                    end(started[stage], held[stage], chunks, lane, rules.pending)
                    hand_on(
                        now, free[stage], stage, lane, started[stage][lane] - 1, rules, next_stage, next_lane,
                        occupancy, delay, arrivals, leaving, events,
                    )  # fmt: skip
        for which in offered:
            serve(now, which, rules, occupancy, delay, link_free, arrivals, waiting[which], events)
        awake.sort()
        for stage in awake:
            if running[stage] != NOTHING:
                continue
            lane = choose(
                now, rules.strict, rules.reserve, chunks, microbatches,
                started[stage], held[stage], caps[stage], places[stage], arrivals[stage],
            )  # fmt: skip
            if lane == NOTHING:
                continue
            number = lane * microbatches + started[stage][lane]
            start(started[stage], held[stage], chunks, lane)
            running[stage] = lane
            at = begin(
                now, stage, lane, number, rules, durations, host, link, occupancy, delay, link_free, free, launched
            )
            begins[stage][number] = at
            chooses[stage] = max(at, launched[stage], free[stage] - lead[stage][lane])
            heappush(events, chooses[stage] * actors + stages + stage)


def hand_on(
    now: int, ends: int, stage: int, lane: int, microbatch: int, rules: Rules, next_stage: Any, next_lane: Any,
    occupancy: Any, delay: Any, arrivals: Any, leaving: Any, events: Any,
) -> None:  # fmt: skip
    """What an operation has made goes where it is needed."""
    target = next_stage[stage][lane]
    if target < 0:
        return
    needs = next_lane[stage][lane] * rules.microbatches + microbatch
    at = now if target == stage else ends
    if not rules.blocking and occupancy[target][needs] > 0:
        leaving[stage] = target * rules.operations + needs
        heappush(events, at * rules.actors + stage)
        return
    arrives = at if rules.blocking else at + delay[target][needs]
    arrivals[target][needs] = arrives
    heappush(events, arrives * rules.actors + rules.stages + target)


def join(message: int, number: int, rules: Rules, places: Any, link: Any, waiting: Any) -> int:
    """A message, the number-th that sets out, waits for its link, which is returned."""
    target, needs = message // rules.operations, message % rules.operations
    which: int = link[target][needs // rules.microbatches]
    urgency = places[target][needs] if rules.by_need else number
    heappush(waiting[which], urgency * (rules.stages * rules.operations) + message)
    return which


def serve(
    now: int, which: int, rules: Rules, occupancy: Any, delay: Any, link_free: Any, arrivals: Any, queue: Any,
    events: Any,
) -> None:  # fmt: skip
    """A link takes the first of what waits for it, if it can."""
    if len(queue) > 0 and link_free[which] <= now:
        message = heappop(queue) % (rules.stages * rules.operations)
        target, needs = message // rules.operations, message % rules.operations
        link_free[which] = now + occupancy[target][needs]
        arrivals[target][needs] = link_free[which] + delay[target][needs]
        heappush(events, arrivals[target][needs] * rules.actors + rules.stages + target)
    if len(queue) > 0:
        heappush(events, link_free[which] * rules.actors + 2 * rules.stages + which)


def begin(
    now: int, stage: int, lane: int, number: int, rules: Rules, durations: Any, host: Any, link: Any, occupancy: Any,
    delay: Any, link_free: Any, free: Any, launched: Any,
) -> int:  # fmt: skip
    """When the operation begins that a stage has chosen now."""
    duration = durations[stage][number]
    chosen = launched[stage] if rules.strict else now
    launched[stage] = chosen + host[stage][lane]
    at: int = max(now, free[stage], chosen + rules.launch, launched[stage] - duration)
    if rules.blocking and lane < 2 * rules.chunks:
        at = receive(at, link[stage][lane], occupancy[stage][number], delay[stage][number], link_free)
    free[stage] = at + duration
    return at


def receive(now: int, link: int, occupancy: int, delay: int, link_free: Any) -> int:
    """When a message is there that sets out now. link −1: one of its own."""
    sets_out = now
    if link >= 0:
        sets_out = max(now, link_free[link])
        link_free[link] = sets_out + occupancy
    return sets_out + occupancy + delay
