"""What the training log says: loss, learning rate, gradient norm and speed, on the terminal and in TensorBoard."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from megatronapp.core.logging import get_logger
from megatronapp.core.trace.values import Progress
from megatronapp.trainer.config import ModelConfig
from megatronapp.trainer.model import ffn_hidden_size

log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """One line of the log: means over the steps since the line before. `loss` is None on ranks that don't know it."""

    step: int
    total_steps: int
    loss: float | None
    learning_rate: float
    grad_norm: float | None
    step_seconds: float
    tokens_per_second: float
    tflops_per_gpu: float

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
            tokens_per_second=round(report.tokens_per_second, 1),
            tflops_per_gpu=round(report.tflops_per_gpu, 6),
        )

    def evaluation(self, report: EvaluationReport) -> None:
        log.info(
            "evaluation", step=report.step, split=report.split, loss=report.loss, perplexity=round(report.perplexity, 3)
        )

    def close(self) -> None:
        pass


class TensorBoardReporter:
    """TensorBoard events under `folder`, with Megatron-LM's tags where it has one."""

    def __init__(self, folder: Path, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # A restart goes on where the checkpoint was: events of steps that are done again are hidden.
        self._writer = SummaryWriter(str(folder), purge_step=first_step if first_step > 1 else None)

    def step(self, report: StepReport) -> None:
        values = {
            "lm loss": report.loss,
            "learning-rate": report.learning_rate,
            "grad-norm": report.grad_norm,
            "iteration-time": report.step_seconds,
            "tokens-per-second": report.tokens_per_second,
            "throughput": report.tflops_per_gpu,
        }
        for tag, value in values.items():
            if value is not None:
                self._writer.add_scalar(tag, value, report.step)

    def evaluation(self, report: EvaluationReport) -> None:
        self._writer.add_scalar(f"lm loss {report.split}", report.loss, report.step)
        self._writer.add_scalar(f"lm loss {report.split} ppl", report.perplexity, report.step)

    def close(self) -> None:
        self._writer.close()


def flops_per_sequence(model: ModelConfig, sequence_length: int, vocabulary: int) -> float:
    """Floating-point operations of forward and backward over one sequence, the model's own: what is recomputed is
    not counted, causal attention is counted half (Narayanan et al., 2021, arXiv:2104.04473, appendix; extended to
    grouped queries, gated MLPs and experts)."""
    hidden, length = model.hidden_size, sequence_length
    width = model.kv_channels or hidden // model.num_attention_heads
    queries = width * model.num_attention_heads
    keys = width * (model.num_query_groups if model.group_query_attention else model.num_attention_heads)
    inner = ffn_hidden_size(model)
    if model.num_experts is not None:
        inner = (model.moe_ffn_hidden_size or inner) * model.moe_router_topk
    attention = 2 * length * hidden * (2 * queries + 2 * keys) + 2 * length * length * queries
    mlp = 2 * length * hidden * inner * (3 if model.swiglu else 2)
    logits = 2 * length * hidden * vocabulary
    return 3.0 * (model.num_layers * (attention + mlp) + logits)
