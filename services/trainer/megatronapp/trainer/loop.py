"""The training loop: steps, evaluations, checkpoints, and a clean end."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from megatronapp.core.errors import TrainingError
from megatronapp.core.trace.values import Evaluation, Phase, Progress
from megatronapp.trainer.batch_ramp import BatchRamp
from megatronapp.trainer.batches import Split
from megatronapp.trainer.borders import Border, Borders
from megatronapp.trainer.metrics import EvaluationReport, Reporter, StepReport
from megatronapp.trainer.stepping import StepOutcome, Stepper
from megatronapp.trainer.throughput import Throughput


@dataclass(kw_only=True)
class Window:
    """What has gathered since the last line of the log."""

    loss: torch.Tensor | None = None
    """[losses, 2], float64: of each loss its sum, and over how many."""
    steps: int = 0
    samples: int = 0
    counted: torch.Tensor | None = None
    """As StepOutcome's."""
    seconds: float = 0.0


class Patience:
    """How many evaluations in a row had no lower loss than the best one before them. Only ranks that know the loss
    count; one that runs out of it stops all."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._best = math.inf
        self._without = 0

    def see(self, loss: float) -> None:
        self._without = 0 if loss < self._best else self._without + 1
        self._best = min(self._best, loss)

    @property
    def is_over(self) -> bool:
        return self._most is not None and self._without >= self._most


class Trainer:
    """Drives the stepper's state from its step to the last one."""

    def __init__(self, stepper: Stepper, reporters: Sequence[Reporter], throughput: Throughput) -> None:
        self._stepper = stepper
        self._config = stepper.config
        self._state = stepper.state
        self._plugins = stepper.plugins
        self._batches = batches = stepper.batches
        self._reporters = reporters
        self._throughput = throughput
        self._ramp = BatchRamp.of(self._config.training, batches.layout.global_batch_size)
        self._window = Window()
        self._patience = Patience(self._config.evaluation.early_stop_patience)

    def train(self, borders: Borders) -> None:
        """Train to the last step or to SIGTERM; a checkpoint is left at the end.

        Raises TrainingError when the loss is no number any more.
        """
        state, intervals = self._state, self._config
        saved_at = state.step
        self._plugins.training_begin(state.step, state.consumed_samples, loaded=state.loaded)
        if intervals.training.skip_train:
            self._evaluate("valid")
            self._evaluate("test")
            self._end()
            return
        limit_seconds = (intervals.training.exit_duration_in_mins or math.inf) * 60
        began = time.monotonic()
        while state.step < self._config.training.train_iters:
            self._step()
            if self._due(intervals.evaluation.eval_interval) and intervals.evaluation.eval_iters:
                self._evaluate("valid")
                if self._patience.is_over:
                    borders.request_stop()
            border = borders.after(state.step)
            if Border.PLUGINS in border or self._plugins.border_due(state.step):
                self._border()
            if self._due(intervals.checkpoint.save_interval):
                self._stepper.save()
                saved_at = state.step
            if Border.STOP in border or self._due(intervals.training.exit_interval):
                break
            if time.monotonic() - began > limit_seconds:
                borders.request_stop()
        if saved_at < state.step:
            self._stepper.save()
        self._stepper.finish_save()
        if state.step >= self._config.training.train_iters and intervals.evaluation.eval_iters:
            self._evaluate("test")
        self._end()

    def _end(self) -> None:
        self._plugins.training_end()
        self._plugins.phase_begin(Phase.PAUSE)  # ranks end one by one, and wait for each other in it

    def _due(self, interval: int | None) -> bool:
        return bool(interval) and self._state.step % int(interval or 1) == 0

    # ---- one step

    def _step(self) -> None:
        size = self._ramp.size_at(self._state.consumed_samples)
        self._stepper.step(self._stepper.data, size, lambda outcome: self._done(outcome, size))

    def _done(self, outcome: StepOutcome, samples: int) -> Progress | None:
        window = self._window
        if outcome.losses is not None:
            window.loss = outcome.losses if window.loss is None else window.loss + outcome.losses
        window.steps += 1
        window.samples += samples
        if outcome.counted is not None:
            window.counted = outcome.counted if window.counted is None else window.counted + outcome.counted
        window.seconds += outcome.seconds
        return self._report(outcome).progress() if self._due(self._config.logging.log_interval) else None

    # ---- the log

    def _report(self, outcome: StepOutcome) -> StepReport:
        window, self._window = self._window, Window()
        losses = None if window.loss is None else mean_losses(window.loss)
        loss = None if losses is None else sum(losses)
        if loss is not None and not math.isfinite(loss):
            raise TrainingError(
                f"the loss is {loss} at step {self._state.step}: "
                "lower --lr, lengthen --lr-warmup-iters or set --clip-grad"
            )
        tokens, flops = self._throughput.of(window.samples, window.counted)
        gpu_seconds = window.seconds * self._batches.layout.world
        step_seconds = window.seconds / window.steps
        report = StepReport(
            step=self._state.step,
            total_steps=self._config.training.train_iters,
            loss=loss,
            parts=self._named(losses or ()),
            learning_rate=outcome.learning_rate,
            grad_norm=outcome.grad_norm,
            step_seconds=step_seconds,
            tokens_per_second=None if tokens is None else tokens / window.seconds,
            tflops_per_gpu=None if flops is None else flops / gpu_seconds / 1e12,
        )
        for reporter in self._reporters:
            reporter.step(report)
        return report

    def _named(self, losses: Sequence[float]) -> dict[str, float]:
        """By name, where there are several."""
        return dict(zip(self._stepper.losses.names, losses, strict=True)) if len(losses) > 1 else {}

    # ---- between steps

    def _border(self) -> None:
        with self._stepper.phase(Phase.PAUSE):
            if self._plugins.border(self._state.step):
                self._state.optimizer.reload_model_params()

    def _evaluate(self, split: Split) -> None:
        if not self._batches.has(split):
            return
        layout, count = self._batches.layout, self._config.evaluation.eval_iters
        with self._stepper.evaluating():
            data = self._batches.evaluate(split)
            batches = [self._stepper.evaluate(data, layout.global_batch_size) for _ in range(count)]
            known = [losses for losses in batches if losses is not None]
            if known:
                self._report_evaluation(split, mean_losses(torch.stack(known).sum(0)))

    def _report_evaluation(self, split: Split, losses: tuple[float, ...]) -> None:
        mean, step = sum(losses), self._state.step
        report = EvaluationReport(
            step=step,
            split=split,
            loss=mean,
            parts=self._named(losses),
            perplexity=math.exp(min(losses[0], 20.0)),
        )
        for reporter in self._reporters:
            reporter.evaluation(report)
        if split == "valid":
            self._patience.see(mean)
        microbatches = self._config.evaluation.eval_iters * self._batches.layout.microbatches
        self._plugins.evaluation(Evaluation(split=split, loss=mean, microbatches=microbatches, step=step))


def mean_losses(total: torch.Tensor) -> tuple[float, ...]:
    """From [losses, 2]: sums, and over how many."""
    return tuple(float(loss / count) if count else math.nan for loss, count in total.tolist())
