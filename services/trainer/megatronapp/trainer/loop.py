"""The training loop: steps, evaluations, checkpoints, and a clean end."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.transformer_config import TransformerConfig

from megatronapp.core.errors import TrainingError
from megatronapp.core.logging import get_logger
from megatronapp.core.trace.values import Evaluation, Phase
from megatronapp.trainer import checkpoint
from megatronapp.trainer.batch_ramp import BatchRamp
from megatronapp.trainer.batches import Batches, Split
from megatronapp.trainer.borders import Border, Borders
from megatronapp.trainer.checkpoint import TrainingState
from megatronapp.trainer.checkpoint_folder import Claim
from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.metrics import EvaluationReport, Reporter, StepReport
from megatronapp.trainer.models import family_of
from megatronapp.trainer.pipeline.port import PipelineMessages
from megatronapp.trainer.plugins.base import ScheduleFunction
from megatronapp.trainer.plugins.chain import PluginChain

log = get_logger(__name__)


@dataclass(kw_only=True)
class Window:
    """What has gathered since the last line of the log."""

    loss: torch.Tensor
    """[losses, 2], float64: of each loss its sum, and over how many."""
    steps: int = 0
    samples: int = 0
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
    """Drives `state` from its step to the last one."""

    def __init__(
        self,
        config: TrainerConfig,
        transformer: TransformerConfig,
        state: TrainingState,
        batches: Batches,
        plugins: PluginChain,
        reporters: Sequence[Reporter],
        *,
        device: torch.device,
        flops_per_sequence: float,
        claim: Claim | None,
        schedule: ScheduleFunction,
        pipeline: PipelineMessages | None,
    ) -> None:
        self._config = config
        family = family_of(config.model)
        self._losses = family.losses(config.model)
        self._transformer = transformer
        self._state = state
        self._batches = batches
        self._plugins = plugins
        self._reporters = reporters
        self._device = device
        self._flops_per_sequence = flops_per_sequence
        self._ramp = BatchRamp.of(config.training, batches.layout.global_batch_size)
        self._claim = claim
        self._pipeline = pipeline
        self._knows_loss = parallel_state.is_pipeline_last_stage(ignore_virtual=True)
        self._window = self._new_window()
        self._patience = Patience(config.evaluation.early_stop_patience)
        self._forward_step = plugins.forward_step(family.forward_step(device))
        self._data = [plugins.data(iterator) for iterator in batches.train(state.consumed_samples)]
        self._schedule = plugins.schedule(schedule)
        self._optimizer_step = plugins.optimizer(state.optimizer.step)

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
            self._step(state.step + 1)
            if self._due(intervals.evaluation.eval_interval) and intervals.evaluation.eval_iters:
                self._evaluate("valid")
                if self._patience.is_over:
                    borders.request_stop()
            border = borders.after(state.step)
            if Border.PLUGINS in border or self._plugins.border_due(state.step):
                self._border()
            if self._due(intervals.checkpoint.save_interval):
                self._save()
                saved_at = state.step
            if Border.STOP in border or self._due(intervals.training.exit_interval):
                break
            if time.monotonic() - began > limit_seconds:
                borders.request_stop()
        if saved_at < state.step:
            self._save()
        if state.step >= self._config.training.train_iters and intervals.evaluation.eval_iters:
            self._evaluate("test")
        self._end()

    def _end(self) -> None:
        self._plugins.training_end()
        self._plugins.phase_begin(Phase.PAUSE)  # ranks end one by one, and wait for each other in it

    def _due(self, interval: int | None) -> bool:
        return bool(interval) and self._state.step % int(interval or 1) == 0

    # ---- one step

    def _step(self, step: int) -> None:
        if self._pipeline is not None:
            self._pipeline.begin_step(step)
        self._plugins.step_begin(step)
        start = time.perf_counter()
        for chunk in self._state.chunks:
            chunk.zero_grad_buffer()
        self._state.optimizer.zero_grad()
        batch_size = self._ramp.size_at(self._state.consumed_samples)
        outputs = self._run_schedule(self._data, batch_size, forward_only=False)
        if self._knows_loss:  # before the optimizer, whose norm the host waits for
            self._window.loss += self._total_loss(outputs)
        updated, grad_norm, _ = self._optimizer_step()
        if grad_norm is None and self._device.type == "cuda":
            torch.cuda.synchronize()  # the norm's value would have waited; without it the host runs steps ahead
        learning_rate = self._learning_rate()
        if updated:
            self._state.scheduler.step(1)
        else:
            self._log_skipped(step)
        self._state.step = step
        self._state.consumed_samples += batch_size
        self._window.steps += 1
        self._window.samples += batch_size
        self._window.seconds += time.perf_counter() - start
        report = self._report(grad_norm, learning_rate) if self._due(self._config.logging.log_interval) else None
        self._plugins.step_end(step, report.progress() if report else None)

    def _log_skipped(self, step: int) -> None:
        """Gradients overflowed float16 on some rank, so that no rank changed a weight."""
        if dist.get_rank() == 0:
            log.warning("step_skipped", step=step, loss_scale=float(self._state.optimizer.get_loss_scale()))

    def _run_schedule(self, data: list[Iterator[Any]], batch_size: int, *, forward_only: bool) -> list[torch.Tensor]:
        layout = self._batches.layout
        outputs: list[torch.Tensor] = self._schedule(
            forward_step_func=self._forward_step,
            data_iterator=data if layout.virtual else data[0],
            model=self._state.chunks,
            num_microbatches=batch_size // (layout.micro_batch_size * layout.data),
            seq_length=self._config.training.seq_length,
            micro_batch_size=layout.micro_batch_size,
            forward_only=forward_only,
        )
        return outputs

    def _learning_rate(self) -> float:
        return float(next(g["lr"] for g in self._state.optimizer.param_groups if g.get("default_config", True)))

    # ---- the log

    def _new_window(self) -> Window:
        return Window(loss=self._no_loss())

    def _no_loss(self) -> torch.Tensor:
        return torch.zeros((len(self._losses), 2), dtype=torch.float64, device=self._device)

    def _total_loss(self, outputs: list[torch.Tensor]) -> torch.Tensor:
        """[losses, 2] of all data-parallel ranks' microbatches; the ranks of the last stage call it together."""
        loss = torch.stack(outputs).double().sum(0)
        dist.all_reduce(loss, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
        return loss

    def _report(self, grad_norm: float | None, learning_rate: float) -> StepReport:
        window, self._window = self._window, self._new_window()
        losses = mean_losses(window.loss) if self._knows_loss else None
        loss = None if losses is None else sum(losses)
        if loss is not None and not math.isfinite(loss):
            raise TrainingError(
                f"the loss is {loss} at step {self._state.step}: "
                "lower --lr, lengthen --lr-warmup-iters or set --clip-grad"
            )
        layout = self._batches.layout
        step_seconds = window.seconds / window.steps
        report = StepReport(
            step=self._state.step,
            total_steps=self._config.training.train_iters,
            loss=loss,
            parts=self._named(losses or ()),
            learning_rate=learning_rate,
            grad_norm=None if grad_norm is None else float(grad_norm),
            step_seconds=step_seconds,
            tokens_per_second=window.samples * self._config.training.seq_length / window.seconds,
            tflops_per_gpu=self._flops_per_sequence * window.samples / window.seconds / layout.world / 1e12,
        )
        for reporter in self._reporters:
            reporter.step(report)
        return report

    def _named(self, losses: Sequence[float]) -> dict[str, float]:
        """By name, where there are several."""
        return dict(zip(self._losses, losses, strict=True)) if len(losses) > 1 else {}

    # ---- between steps

    @contextmanager
    def _phase(self, phase: Phase) -> Iterator[None]:
        """A phase known to the plug-ins, in which every rank holds the newest weights."""
        self._plugins.phase_begin(phase)
        synchronizing = self._transformer.param_sync_func
        overlap = self._config.parallel.overlap_param_gather
        if overlap:
            self._transformer.param_sync_func = None
            for chunk in self._state.chunks:
                chunk.disable_forward_pre_hook()
        try:
            yield
        finally:
            if overlap:
                self._transformer.param_sync_func = synchronizing
                for chunk in self._state.chunks:
                    chunk.enable_forward_pre_hook()
            self._plugins.phase_end(phase)

    def _border(self) -> None:
        with self._phase(Phase.PAUSE):
            if self._plugins.border(self._state.step):
                self._state.optimizer.reload_model_params()

    def _evaluate(self, split: Split) -> None:
        if not self._batches.has(split):
            return
        with self._phase(Phase.EVALUATION), torch.no_grad():
            loss = self._no_loss()
            data = self._batches.evaluate(split)
            for chunk in self._state.chunks:
                chunk.eval()
            for _ in range(self._config.evaluation.eval_iters):
                outputs = self._run_schedule(data, self._batches.layout.global_batch_size, forward_only=True)
                if self._knows_loss:
                    loss += self._total_loss(outputs)
            for chunk in self._state.chunks:
                chunk.train()
            if self._knows_loss:
                losses = mean_losses(loss)
                mean = sum(losses)
                report = EvaluationReport(
                    step=self._state.step,
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
                self._plugins.evaluation(
                    Evaluation(split=split, loss=mean, microbatches=microbatches, step=self._state.step)
                )

    def _save(self) -> None:
        if self._claim is None:
            return
        with self._phase(Phase.CHECKPOINT):
            start = time.perf_counter()
            folder = checkpoint.save(self._state, self._claim, self._config.checkpoint, self._plugins.checkpoint)
            if dist.get_rank() == 0:
                seconds = round(time.perf_counter() - start, 3)
                log.info("checkpoint_saved", step=self._state.step, folder=str(folder), seconds=seconds)


def mean_losses(total: torch.Tensor) -> tuple[float, ...]:
    """From [losses, 2]: sums, and over how many."""
    return tuple(float(loss / count) if count else math.nan for loss, count in total.tolist())
