"""One step, one evaluated batch, one checkpoint: what the training loop and an engine of one's own loop are made of."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.transformer_config import TransformerConfig

from megatronapp.core.errors import TrainingError
from megatronapp.core.logging import get_logger
from megatronapp.core.trace.values import Phase, Progress
from megatronapp.trainer import checkpoint
from megatronapp.trainer.batches import Batches
from megatronapp.trainer.checkpoint import TrainingState
from megatronapp.trainer.checkpoint_folder import Claim, find_latest
from megatronapp.trainer.checkpoint_writing import Writing
from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.models.train_step import LoggedLosses
from megatronapp.trainer.newest_weights import newest_weights
from megatronapp.trainer.not_finite import NotFiniteSteps, all_finite
from megatronapp.trainer.parallel import on_first_rank
from megatronapp.trainer.pipeline.port import PipelineMessages
from megatronapp.trainer.plugins.base import ScheduleFunction
from megatronapp.trainer.plugins.chain import PluginChain
from megatronapp.trainer.throughput import CountedMicrobatches

log = get_logger(__name__)

Data = list[Iterator[Any]]
"""One iterator over microbatches per model chunk."""


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """`losses`: [losses, 2], float64, of each loss its sum and over how many, of all microbatches and data ranks; None
    on ranks that don't know it, and of steps that --nan-policy left out. Not `updated`: gradients overflowed float16 on
    some rank, or were no numbers, and no rank changed a weight."""

    losses: torch.Tensor | None
    grad_norm: float | None
    learning_rate: float
    updated: bool
    seconds: float
    counted: torch.Tensor | None
    """With --variable-seq-lengths, on ranks that know the loss: what CountedMicrobatches has counted."""


class Stepper:
    """Moves `state`; all ranks make the same calls in the same order."""

    def __init__(
        self,
        config: TrainerConfig,
        transformer: TransformerConfig,
        state: TrainingState,
        batches: Batches,
        plugins: PluginChain,
        losses: LoggedLosses,
        *,
        device: torch.device,
        schedule: ScheduleFunction,
        pipeline: PipelineMessages | None,
        claim: Claim | None,
    ) -> None:
        self.config, self.transformer, self.state, self.batches = config, transformer, state, batches
        self.layout = batches.layout
        self.plugins, self.losses, self.device, self.claim = plugins, losses, device, claim
        self.knows_loss = parallel_state.is_pipeline_last_stage(ignore_virtual=True)
        self._pipeline = pipeline
        self._writing: Writing | None = None
        self._not_finite = NotFiniteSteps()
        self._forward_step = plugins.forward_step(losses.forward_step)
        self.restart_data()
        self._schedule = plugins.schedule(schedule)
        plugins.optimizer_built(state.optimizer)
        self._optimizer_step = plugins.optimizer(state.optimizer.step)

    def restart_data(self) -> None:
        """Training's, from the state's place on."""
        iterators = self.batches.train(self.state.consumed_samples)
        self._counted = None
        if self.config.training.variable_seq_lengths and self.knows_loss:
            self._counted = iterators[-1] = CountedMicrobatches(iterators[-1])
        self.data: Data = [self.plugins.data(iterator) for iterator in iterators]

    # ---- one step

    def step(
        self, data: Data, batch_size: int, report: Callable[[StepOutcome], Progress | None] = lambda _: None
    ) -> StepOutcome:
        """Forward, backward and optimizer over a global batch. `report` says what plug-ins are told of the progress."""
        step = self.state.step + 1
        if self._pipeline is not None:
            self._pipeline.begin_step(step)
        self.plugins.step_begin(step)
        start = time.perf_counter()
        for chunk in self.state.chunks:
            chunk.zero_grad_buffer()
        self.state.optimizer.zero_grad()
        outputs = self._run_schedule(data, batch_size, forward_only=False)
        # Before the optimizer, whose norm the host waits for.
        losses = self._total(outputs) if self.knows_loss else None
        finite = self._is_finite(losses)
        updated, grad_norm, _ = self._optimizer_step() if finite else (False, None, None)
        if grad_norm is None and self.device.type == "cuda":
            torch.cuda.synchronize()  # the norm's value would have waited; without it the host runs steps ahead
        learning_rate = self._learning_rate()
        if updated:
            self.state.scheduler.step(1)
        else:
            self._log_skipped(step, finite=finite)
        self.state.step = step
        self.state.consumed_samples += batch_size
        outcome = StepOutcome(
            losses=losses if finite else None,
            grad_norm=None if grad_norm is None else float(grad_norm),
            learning_rate=learning_rate,
            updated=bool(updated),
            seconds=time.perf_counter() - start,
            counted=None if self._counted is None else self._counted.take(self.device),
        )
        self.plugins.step_end(step, report(outcome))
        self.finish_save(wait=False)
        if not finite and self.config.training.nan_policy == "rollback":
            self._roll_back()
        return outcome

    def _is_finite(self, losses: torch.Tensor | None) -> bool:
        """Not looked at where the policy is to stop: the log's next line does."""
        training = self.config.training
        if training.nan_policy == "stop":
            return True
        finite = all_finite(losses, self.state.chunks, self.device, scaled=training.fp16)
        self._not_finite.see(finite=finite, step=self.state.step + 1)
        return finite

    def _log_skipped(self, step: int, *, finite: bool) -> None:
        if dist.get_rank() == 0:
            why = {"loss_scale": float(self.state.optimizer.get_loss_scale())} if finite else {"reason": "no number"}
            log.warning("step_skipped", step=step, **why)

    def _roll_back(self) -> None:
        """Weights and optimizer of the newest checkpoint; steps, learning rate and data go on. Raises TrainingError
        where there is none."""
        self.finish_save()
        folder = self.claim.folder if self.claim is not None else None
        found = on_first_rank(lambda: find_latest(folder)) if folder is not None else None
        if folder is None or found is None:
            raise TrainingError("--nan-policy rollback found no checkpoint: give --save and --save-interval")
        state = self.state
        step, samples, schedule = state.step, state.consumed_samples, state.scheduler.state_dict()
        with self.phase(Phase.CHECKPOINT):
            checkpoint.load(state, folder, found, self.config.checkpoint, fresh=False)
        state.step, state.consumed_samples = step, samples
        state.scheduler.load_state_dict(schedule)
        if dist.get_rank() == 0:
            log.warning("rolled_back", step=step, to=found)

    def _run_schedule(self, data: Data, batch_size: int, *, forward_only: bool) -> list[torch.Tensor]:
        outputs: list[torch.Tensor] = self._schedule(
            forward_step_func=self._forward_step,
            data_iterator=data if self.layout.virtual else data[0],
            model=self.state.chunks,
            num_microbatches=batch_size // (self.layout.micro_batch_size * self.layout.data),
            seq_length=self.config.training.seq_length,
            micro_batch_size=self.layout.micro_batch_size,
            forward_only=forward_only,
        )
        return outputs

    def _learning_rate(self) -> float:
        return float(next(g["lr"] for g in self.state.optimizer.param_groups if g.get("default_config", True)))

    def _total(self, outputs: list[torch.Tensor]) -> torch.Tensor:
        """[losses, 2] of all data-parallel ranks' microbatches; the ranks of the last stage call it together."""
        losses = torch.stack(outputs).double().sum(0)
        dist.all_reduce(losses, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
        return losses

    # ---- between steps

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """A phase known to the plug-ins, in which every rank holds the newest weights."""
        self.plugins.phase_begin(phase)
        try:
            with newest_weights(self.state.chunks, self.transformer):
                yield
        finally:
            self.plugins.phase_end(phase)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """In which `evaluate` may be called: no dropout, no gradients."""
        with self.phase(Phase.EVALUATION), torch.no_grad():
            for chunk in self.state.chunks:
                chunk.eval()
            try:
                yield
            finally:
                for chunk in self.state.chunks:
                    chunk.train()

    def evaluate(self, data: Data, batch_size: int) -> torch.Tensor | None:
        """The losses of one batch, as of a step."""
        outputs = self._run_schedule(data, batch_size, forward_only=True)
        return self._total(outputs) if self.knows_loss else None

    def save(self) -> Path | None:
        """A checkpoint, where there is a folder for it; with --async-save it is only begun, and complete when
        `finish_save` has said so."""
        if self.claim is None:
            return None
        self.finish_save()
        with self.phase(Phase.CHECKPOINT):
            start = time.perf_counter()
            if self.config.checkpoint.async_save:
                self._writing = checkpoint.begin_save(self.state, self.claim, self.config.checkpoint)
                return self._writing.final
            folder = checkpoint.save(self.state, self.claim, self.config.checkpoint, self.plugins.checkpoint)
            self._log_saved(self.state.step, folder, time.perf_counter() - start)
        return folder

    def finish_save(self, *, wait: bool = True) -> None:
        """Makes what was begun a checkpoint, where there is one: at once if all ranks have written, else only where
        they are waited for."""
        writing = self._writing
        if writing is None or not (wait or writing.is_done(self.device)):
            return
        with self.phase(Phase.CHECKPOINT):
            start = time.perf_counter()
            self._writing = None
            folder = writing.finish()
            self._log_saved(writing.step, folder, time.perf_counter() - start)

    def _log_saved(self, step: int, folder: Path, seconds: float) -> None:
        if dist.get_rank() == 0:
            log.info("checkpoint_saved", step=step, folder=str(folder), seconds=round(seconds, 3))
