"""What the training log says: loss, learning rate, gradient norm and speed, on the terminal and in TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from megatronapp.core.logging import get_logger
from megatronapp.core.trace.values import Progress

log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """One line of the log: means over the steps since the line before. None: not known on this
    rank."""

    step: int
    total_steps: int
    loss: float | None
    """The sum of all."""
    learning_rate: float
    grad_norm: float | None
    step_seconds: float
    tokens_per_second: float | None
    """Padding is none."""
    tflops_per_gpu: float | None
    parts: Mapping[str, float] = field(default_factory=dict)
    """Of a model that learns from several losses: each by its name."""

    def progress(self) -> Progress:
        return Progress(
            loss=self.loss,
            learning_rate=self.learning_rate,
            grad_norm=self.grad_norm,
            tokens_per_second=self.tokens_per_second,
            tflops_per_gpu=self.tflops_per_gpu,
            total_steps=self.total_steps,
        )


@dataclass(frozen=True, kw_only=True)
class EvaluationReport:
    step: int
    split: str
    loss: float
    perplexity: float
    """Of the words alone."""
    parts: Mapping[str, float] = field(default_factory=dict)


class Reporter(Protocol):
    """Told of every line of the training log, on the last rank."""

    def step(self, report: StepReport) -> None: ...

    def evaluation(self, report: EvaluationReport) -> None: ...

    def close(self) -> None: ...


class LogReporter:
    """Lines of the structured log."""

    def step(self, report: StepReport) -> None:
        log.info(
            "step",
            step=report.step,
            of=report.total_steps,
            loss=report.loss,
            learning_rate=report.learning_rate,
            grad_norm=report.grad_norm,
            step_ms=round(report.step_seconds * 1e3, 1),
            tokens_per_second=_rounded(report.tokens_per_second, 1),
            tflops_per_gpu=_rounded(report.tflops_per_gpu, 6),
            **_keywords(report.parts),
        )

    def evaluation(self, report: EvaluationReport) -> None:
        log.info(
            "evaluation",
            step=report.step,
            split=report.split,
            loss=report.loss,
            perplexity=round(report.perplexity, 3),
            **_keywords(report.parts),
        )

    def close(self) -> None:
        pass


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _keywords(parts: Mapping[str, float]) -> dict[str, float]:
    return {name.replace(" ", "_"): value for name, value in parts.items()}


def step_values(report: StepReport) -> dict[str, float]:
    """What is known, by Megatron-LM's names where it has one."""
    values = {
        "lm loss": report.loss,
        "learning-rate": report.learning_rate,
        "grad-norm": report.grad_norm,
        "iteration-time": report.step_seconds,
        "tokens-per-second": report.tokens_per_second,
        "throughput": report.tflops_per_gpu,
        **report.parts,
    }
    return {name: value for name, value in values.items() if value is not None}


def evaluation_values(report: EvaluationReport) -> dict[str, float]:
    losses = report.parts or {"lm loss": report.loss}
    named = {f"{name} {report.split}": loss for name, loss in losses.items()}
    return named | {f"lm loss {report.split} ppl": report.perplexity}


class TensorBoardReporter:
    """TensorBoard events under `folder`."""

    def __init__(self, folder: Path, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # A restart goes on where the checkpoint was: events of steps that are done again are hidden.
        self._writer = SummaryWriter(str(folder), purge_step=first_step if first_step > 1 else None)

    def step(self, report: StepReport) -> None:
        for tag, value in step_values(report).items():
            self._writer.add_scalar(tag, value, report.step)

    def evaluation(self, report: EvaluationReport) -> None:
        for tag, value in evaluation_values(report).items():
            self._writer.add_scalar(tag, value, report.step)

    def close(self) -> None:
        self._writer.close()
