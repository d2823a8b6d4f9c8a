"""How much could any order of a pipeline's operations gain over the static replay? `python -m bench.best_order`

The rows of `bench.dpp` once more, simulated: stages, lanes and cap as there. Beside MegaDPP's choice, which sees only
what has come, stands the best order that simulated annealing finds for each step by itself, with all its durations and
late messages known beforehand: from the order that was chosen on, one operation at a time is moved past those of other
lanes. A search is no bound; but a choice that sees less will hardly gain more. One JSON object a row.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from bench._slept_pipeline import DYNAMIC, FILLING, HINT, REPLAY, Setting, simulated
from bench.dpp import MICROBATCHES, OPERATION_MS, RATIOS, SCENARIOS, counted_steps, predicted_seconds, setting_of
from megatronapp.core.pipeline.operations import Operation

HOTTEST = 0.003
"""Share of a step that a worse order may take longer and still be taken up by one in e, in the beginning."""
FARTHEST = 8
"""Operations past which one is moved."""

Orders = list[list[Operation]]


def best_seconds(setting: Setting, seed: int, orders: int) -> float:
    """Of the step with this seed's draws, in the best of so many orders."""
    chances = random.Random(seed)
    chosen = simulated(setting, DYNAMIC, seed)
    taken, taken_ns, best_ns = chosen.orders(), chosen.end_ns, chosen.end_ns
    for number in range(orders):
        tried = moved(taken, chances)
        tried_ns = simulated(setting, DYNAMIC, seed, hints=tried).end_ns
        heat = max(1.0, HOTTEST * chosen.end_ns * (1 - number / orders) ** 2)
        if tried_ns <= taken_ns or chances.random() < math.exp((taken_ns - tried_ns) / heat):
            taken, taken_ns = tried, tried_ns
        best_ns = min(best_ns, tried_ns)
    return best_ns / 1e9


def moved(orders: Orders, chances: random.Random) -> Orders:
    """One operation of one stage elsewhere; lanes keep their order."""
    stage = chances.randrange(len(orders))
    order = list(orders[stage])
    begin = end = chances.randrange(len(order))
    toward = chances.choice((-1, 1))
    for _ in range(chances.randint(1, FARTHEST)):
        if not 0 <= end + toward < len(order) or _lane(order[end + toward]) == _lane(order[begin]):
            break
        end += toward
    order.insert(end, order.pop(begin))
    return [*orders[:stage], order, *orders[stage + 1 :]]


def _lane(operation: Operation) -> tuple[int, int]:
    return operation.kind, operation.chunk


def row(setting: Setting, ratios: str, orders: int) -> dict[str, Any]:
    replay, chosen = (sum(predicted_seconds(setting, mode)) for mode in (REPLAY, DYNAMIC))
    best = sum(best_seconds(setting, seed, orders) for seed in counted_steps(setting))
    return {
        "what": setting.scenario.name,
        "ratios": ratios,
        "hint": setting.hint,
        "seeds": setting.seeds,
        "chosen_over_replay": round(replay / chosen, 3),
        "best_found_over_replay": round(replay / best, 3),
        "must": setting.scenario.over_replay,
    }


def rows(ratios: Sequence[str], hint: str, seeds: int, orders: int) -> Iterator[dict[str, Any]]:
    for text in ratios:
        setting = replace(setting_of(text, OPERATION_MS, MICROBATCHES, seeds), hint=hint)
        for scenario in SCENARIOS[1:]:
            yield row(replace(setting, scenario=scenario), text, orders)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.best_order", description=__doc__)
    parser.add_argument("--ratios", nargs="+", default=RATIOS, metavar="F:B:W", help="default: %(default)s")
    parser.add_argument("--hint", choices=(HINT, FILLING), default=HINT, help="default: %(default)s")
    parser.add_argument("--seeds", type=int, default=5, help="steps, each with draws of its own (default %(default)s)")
    parser.add_argument("--orders", type=int, default=15_000, help="tried for each step (default %(default)s)")
    options = parser.parse_args()
    for each in rows(options.ratios, options.hint, options.seeds, options.orders):
        print(json.dumps(each), flush=True)


if __name__ == "__main__":
    main()
