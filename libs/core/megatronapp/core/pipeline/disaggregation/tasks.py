"""Times of tasks that wait for one another and share resources: first ready, first served."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

from megatronapp.core.errors import TrainingError


@dataclass(frozen=True, slots=True)
class Task:
    """Takes all of its resources for so long, once each of `after` has ended for its lag."""

    duration_ns: float
    resources: tuple[Hashable, ...] = ()
    after: tuple[tuple[Hashable, float], ...] = ()


def ends(tasks: Mapping[Hashable, Task]) -> dict[Hashable, float]:
    """By task, in ns. What is ready at the same time goes in the order of `tasks`. Raises TrainingError where tasks
    wait for each other for ever."""
    successors: defaultdict[Hashable, list[tuple[Hashable, float]]] = defaultdict(list)
    waits = {name: len(task.after) for name, task in tasks.items()}
    for name, task in tasks.items():
        for before, lag in task.after:
            successors[before].append((name, lag))
    number = {name: index for index, name in enumerate(tasks)}
    names = list(tasks)
    ready_ns: defaultdict[Hashable, float] = defaultdict(float)
    free_ns: defaultdict[Hashable, float] = defaultdict(float)
    ready = [(0.0, number[name]) for name, count in waits.items() if not count]
    done: dict[Hashable, float] = {}
    while ready:
        at, index = heappop(ready)
        name, task = names[index], tasks[names[index]]
        end = max([at, *(free_ns[each] for each in task.resources)]) + task.duration_ns
        done[name] = end
        free_ns.update(dict.fromkeys(task.resources, end))
        for successor, lag in successors[name]:
            waits[successor] -= 1
            ready_ns[successor] = max(ready_ns[successor], end + lag)
            if not waits[successor]:
                heappush(ready, (ready_ns[successor], number[successor]))
    if len(done) < len(tasks):
        raise TrainingError(f"{len(tasks) - len(done)} of {len(tasks)} tasks wait for each other for ever")
    return done
