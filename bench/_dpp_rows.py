"""Rows of bench.dpp on devices: what all ranks saw of a case, beside what the simulator says of the same draws."""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np

from bench._dpp_predicted import DYNAMIC, PLANNED, STOCK, Case, Predicted
from megatronapp.core.pipeline import caps
from megatronapp.core.pipeline.choosing import FREE
from megatronapp.core.pipeline.placement import Layout

TRIED = (DYNAMIC, PLANNED)
"""By `--dpp-policy auto`, which runs the faster one."""
MEMORY_LIMIT_RATIO = 0.02


def described(case: Case, layout: Layout, ranks: list[dict[str, Any]], predicted: Predicted) -> dict[str, Any]:
    """A case's row."""
    spans = {mode: _spans(ranks, mode) for mode in ranks[0]["spans"]}
    seconds = {mode: float(np.mean(list(of.values()))) for mode, of in spans.items()}
    simulated = {
        mode: float(np.mean([predicted.run(case, mode, seed).end_ns for seed in of])) / 1e9
        for mode, of in spans.items()
    }
    fast = {
        mode: float(np.mean([predicted.run(case, mode, seed, FREE).end_ns for seed in spans[mode]]))
        for mode in (STOCK, *TRIED)
    }
    bound = float(np.mean([predicted.bound_ns(case, DYNAMIC, seed) for seed in spans[DYNAMIC]])) / 1e9
    faster = min(TRIED, key=seconds.__getitem__)
    gains, gains_simulated, gains_of_fast_hosts = (
        {mode: of[STOCK] / of[mode] for mode in TRIED} for of in (seconds, simulated, fast)
    )
    must = case.must(max(gains_of_fast_hosts.values()))
    fullest = {mode: max(rank["bytes"][mode] for rank in ranks) for mode in (*TRIED, STOCK)}
    # The cap is one for all stages: the fullest decides what fits.
    memory = max(fullest[mode] for mode in TRIED) / max(1, fullest[STOCK])
    passes = predicted.mean_ms(DYNAMIC)
    alike = all(len(set().union(*rank["results"].values())) <= 2 for rank in ranks)  # with and without gradients
    return {
        "steps": {mode: len(of) for mode, of in spans.items()},
        "step_ms": {mode: round(of * 1e3, 2) for mode, of in seconds.items()},
        "faster": faster,
        "gain": _rounded(gains),
        "gain_simulated": _rounded(gains_simulated),
        "gain_simulated_with_fast_hosts": _rounded(gains_of_fast_hosts),
        "must": round(must, 4),
        "goal": case.goal,
        "real_over_predicted": {mode: round(seconds[mode] / simulated[mode], 4) for mode in seconds},
        "over_bound_ratio": round(seconds[faster] / bound - 1, 4),
        "forward_dgrad_wgrad_ms": [round(each, 3) for each in passes],
        "stock_forward_backward_ms": [round(each, 3) for each in predicted.mean_ms(STOCK)[:2]],
        "spun_of_wanted": _quartiles([each for rank in ranks for each in rank["padded"]]),
        "late_messages_later_ms": {
            mode: _quartiles([each for rank in ranks for each in rank["late_ms"].get(mode, ())]) for mode in seconds
        },
        "device_gib": {mode: [round(rank["bytes"][mode] / 2**30, 2) for rank in ranks] for mode in seconds},
        "pool_mib": {mode: [rank["pool_bytes"][mode] >> 20 for rank in ranks] for mode in seconds},
        "memory_over_stock": round(memory - 1, 4),
        "launch_ms": [
            {f"{kind.letter}{chunk}": round(ms, 3) for (kind, chunk), ms in rank["launch_ms"].items()} for rank in ranks
        ],
        "short_and_long_gaps_ms": {
            mode: [[round(float(each), 1) for each in np.mean(rank["gaps"][mode], axis=0)] for rank in ranks]
            for mode in seconds
        },
        "most_in_flight": {mode: max(rank["peaks"][mode] for rank in ranks) for mode in ranks[0]["peaks"]},
        "cap": caps.stock_cap(layout),
        "dispatch_microseconds": round(max(median(rank["dispatch_seconds"]) for rank in ranks) * 1e6, 1),
        "losses": ranks[-1]["losses"],
        "losses_and_gradients_alike": alike,
        "ok": bool(gains[faster] >= must and memory <= 1 + MEMORY_LIMIT_RATIO and alike),
    }


def beside_stock_alone(what: str, quiet: dict[str, Any], alone: list[tuple[float, int]]) -> dict[str, Any]:
    """The row of megatron-core's schedule without the plug-in, with what MegaDPP adds to its memory."""
    step_ms = max(seconds for seconds, _ in alone) * 1e3
    faster = quiet["faster"]
    dynamic = quiet["device_gib"][faster]
    gib = [used / 2**30 for _, used in alone]
    ratio = max(dynamic) / max(1e-9, max(gib))
    return {
        "what": f"quiet, without the plug-in, over torch's messages, {what}",
        "step_ms": round(step_ms, 2),
        "gain": round(step_ms / quiet["step_ms"][faster], 4),
        "device_gib": [round(each, 2) for each in gib],
        "memory_over_stock": round(ratio - 1, 4),
        "ok": ratio <= 1 + MEMORY_LIMIT_RATIO,
    }


def _spans(ranks: list[dict[str, Any]], mode: str) -> dict[int, float]:
    """By seed, in seconds, of all ranks together."""
    return {
        seed: max(rank["spans"][mode][seed][1] for rank in ranks) - min(rank["spans"][mode][seed][0] for rank in ranks)
        for seed in ranks[0]["spans"][mode]
    }


def _rounded(gains: dict[str, float]) -> dict[str, float]:
    return {mode: round(gain, 4) for mode, gain in gains.items()}


def _quartiles(values: list[float]) -> list[float]:
    return [round(float(each), 4) for each in np.percentile(values, (25, 50, 75))] if values else []
