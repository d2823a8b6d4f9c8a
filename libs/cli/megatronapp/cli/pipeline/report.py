"""What `simulate` and `plan` say, as one object and as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from megatronapp.cli.pipeline.options import Asked
from megatronapp.cli.pipeline.trainer_flags import ORDER_FILE, trainer_flags
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.recorded import Recorded
from megatronapp.core.pipeline.simulator.planning import Plan, Scored
from megatronapp.core.pipeline.simulator.run import Run, Schedule
from megatronapp.core.pipeline.simulator.steps import Setting, Steps


def of_steps(schedule: Schedule, steps: Steps, setting: Setting, activation_mib: float) -> dict[str, Any]:
    return {
        "schedule": schedule.name,
        "layout": _layout(steps.layout),
        "replicas": setting.replicas,
        "draws": len(steps.step_ns),
        "step_ms": _ms(steps.step_ns),
        "step_spread_ms": round(float(steps.step_ns.std()) / 1e6, 4),
        "pipeline_ms": _ms(steps.pipeline_ns),
        "bubble_ratio": round(float(steps.bubble.mean()), 4),
        "bound_ms": _ms(steps.bound_ns),
        "over_bound_ratio": round(steps.over_bound, 4),
        "peak_activations": [round(peak, 3) for peak in steps.peaks],
        "peak_mib": [round(peak * activation_mib, 1) for peak in steps.peaks] if activation_mib else None,
    }


def steps_text(answer: dict[str, Any]) -> str:
    layout = answer["layout"]
    replicas = f", {answer['replicas']} replicas" if answer["replicas"] > 1 else ""
    spread = f"  ± {answer['step_spread_ms']:,.3f} over {answer['draws']} draws" if answer["draws"] > 1 else ""
    held, unit = answer["peak_activations"], "activations"
    if answer["peak_mib"]:
        held, unit = answer["peak_mib"], "MiB"
    return "\n".join(
        [
            f"{answer['schedule']}: {_layout_text(layout)}{replicas}",
            f"step      {answer['step_ms']:12,.3f} ms{spread}",
            f"pipeline  {answer['pipeline_ms']:12,.3f} ms  bubble {answer['bubble_ratio']:.1%}",
            f"bound     {answer['bound_ms']:12,.3f} ms  the pipeline takes {answer['over_bound_ratio']:.1%} more",
            f"memory    {_listed(held)} {unit} at most, by stage",
        ]
    )


def of_replay(recorded: Recorded, runs: Sequence[Run]) -> dict[str, Any]:
    measured = recorded.pipeline_ns.astype(float)
    predicted = np.array([run.end_ns for run in runs], float)
    errors = predicted / measured - 1
    return {
        "schedule": "recorded",
        "layout": _layout(recorded.layout),
        "steps": len(recorded),
        "measured_ms": _ms(measured),
        "predicted_ms": _ms(predicted),
        "error_ratio": round(float(predicted.mean() / measured.mean() - 1), 4),
        "worst_error_ratio": round(float(errors[np.abs(errors).argmax()]), 4),
        "bubble_ratio": round(1 - float((recorded.durations.sum(axis=2).mean(axis=1) / measured).mean()), 4),
        "message_ms": round(recorded.usual_message_ns() / 1e6, 4),
        "peak_activations": np.max([run.peaks for run in runs], axis=0).tolist(),
    }


def replay_text(answer: dict[str, Any]) -> str:
    return "\n".join(
        [
            f"the recorded orders: {_layout_text(answer['layout'])}, {answer['steps']} steps",
            f"measured  {answer['measured_ms']:12,.3f} ms  bubble {answer['bubble_ratio']:.1%}",
            f"predicted {answer['predicted_ms']:12,.3f} ms  {answer['error_ratio']:+.1%}, "
            f"of a single step {answer['worst_error_ratio']:+.1%} at worst",
            f"messages  {answer['message_ms']:12,.3f} ms  the usual one",
            f"memory    {_listed(answer['peak_activations'])} activations at most, by stage",
        ]
    )


def of_plan(made: Plan, question: Asked, activation_mib: float, csv: Path | None) -> dict[str, Any]:
    """csv: where the chosen order is written."""
    stages, setting = made.stock.candidate.layout.stages, question.setting
    return {
        "gpus": stages * question.tensor * setting.replicas,
        "stages": stages,
        "tensor": question.tensor,
        "replicas": setting.replicas,
        "chosen": _scored(made.chosen, made, activation_mib),
        "stock": _scored(made.stock, made, activation_mib),
        "gain_ratio": round(made.gain, 4),
        "trainer_flags": trainer_flags(made.chosen.candidate, csv),
        "tried": [_scored(each, made, activation_mib) for each in made.scored],
    }


def plan_text(answer: dict[str, Any]) -> str:
    lines = [f"{answer['gpus']:,} GPUs: PP {answer['stages']} × TP {answer['tensor']} × DP {answer['replicas']}", ""]
    lines.append(f"{'step':>12}  {'to stock':>8}  {'bubble':>6}  {'holds':>8}  schedule")
    for each in answer["tried"]:
        mark = " ← chosen" if each == answer["chosen"] else " (stock)" if each == answer["stock"] else ""
        held = f"{each['peak_mib']:,.0f} MiB" if each["peak_mib"] else f"{each['peak_activations']:g}"
        lines.append(
            f"{each['step_ms']:9,.1f} ms  {each['to_stock_ratio']:8.3f}  {each['bubble_ratio']:6.1%}  {held:>8}  "
            f"{each['schedule']}, {each['chunks']} chunk{'s' * (each['chunks'] > 1)}{mark}"
        )
    chosen = answer["chosen"]
    if chosen == answer["stock"]:
        return "\n".join([*lines, "", "run stock: nothing that fits is faster by more than 0.5 %"])
    said = f"run {chosen['schedule']}: {answer['gain_ratio']:.3f} times as fast as stock"
    flags = " ".join(answer["trainer_flags"])
    written = f" (--csv {ORDER_FILE} writes it)" if ORDER_FILE in answer["trainer_flags"] else ""
    return "\n".join([*lines, "", said, f"in training: {flags}{written}"])


def _scored(scored: Scored, made: Plan, activation_mib: float) -> dict[str, Any]:
    candidate = scored.candidate
    return {
        "schedule": candidate.name,
        "order": candidate.order,
        "cap": candidate.cap,
        "split": candidate.layout.split,
        "chunks": candidate.layout.chunks,
        "step_ms": _ms(scored.steps.step_ns),
        "to_stock_ratio": round(made.stock.step_ns / scored.step_ns, 4),
        "bubble_ratio": round(float(scored.steps.bubble.mean()), 4),
        "over_bound_ratio": round(scored.steps.over_bound, 4),
        "peak_activations": round(scored.peak, 3),
        "peak_mib": round(scored.peak * activation_mib, 1) if activation_mib else None,
    }


def _layout(layout: Layout) -> dict[str, Any]:
    return {
        "stages": layout.stages,
        "chunks": layout.chunks,
        "microbatches": layout.microbatches,
        "split": layout.split,
        "placement": str(layout.placement),
    }


def _layout_text(layout: dict[str, Any]) -> str:
    chunks = f" × {layout['chunks']} chunks" if layout["chunks"] > 1 else ""
    split = "B and W split" if layout["split"] else "B not split"
    return f"{layout['stages']} stages{chunks}, {layout['microbatches']} microbatches, {split}"


def _ms(times_ns: Any) -> float:
    return round(float(np.mean(times_ns)) / 1e6, 4)


def _listed(values: Sequence[float]) -> str:
    """Of many stages the first and the last ones."""
    texts = [f"{value:g}" for value in values]
    return ", ".join(texts if len(texts) <= 16 else [*texts[:8], "…", *texts[-4:]])
