"""A tiny training run inside a test: flags in, losses out."""

from __future__ import annotations

from dataclasses import dataclass, field

from megatronapp.trainer.metrics import EvaluationReport, StepReport

TINY = (
    "--num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --micro-batch-size 2 "
    "--global-batch-size 8 --lr 1e-3 --lr-decay-style constant --mock-data --tokenizer-type ByteTokenizer "
    "--num-workers 0 --log-interval 1 --eval-iters 0 --hidden-dropout 0 --attention-dropout 0"
)
"""Four layers; 20 steps of it take about a second on one core."""


@dataclass
class Recording:
    """A reporter that remembers."""

    steps: list[StepReport] = field(default_factory=list)
    evaluations: list[EvaluationReport] = field(default_factory=list)

    def step(self, report: StepReport) -> None:
        self.steps.append(report)

    def evaluation(self, report: EvaluationReport) -> None:
        self.evaluations.append(report)

    def close(self) -> None:
        pass

    @property
    def losses(self) -> list[float]:
        return [report.loss for report in self.steps if report.loss is not None]


def train(flags: str, *, plugins: tuple[type, ...] = ()) -> Recording:
    """Train in this process (a rank of `run_forked`, or a single one). Only the last rank's recording is filled."""
    from megatronapp.trainer.launch import run

    recording = Recording()
    run(flags.split(), reporters=[recording], plugins=plugins)
    return recording
