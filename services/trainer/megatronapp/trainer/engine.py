"""A loop of one's own over the trainer's own steps.

    with MegatronEngine("--tensor-model-parallel-size 2 --num-layers 4 …") as engine:
        for batch in loader:                     # rows of this data rank, {"input_ids": …} or the trainer's names
            result = engine.train_step(batch)
            if engine.is_main_process:
                print(result.step, result.loss)
        engine.save("checkpoints")

Flags are those of `megatronapp train`. Every rank makes the same calls in the same order. docs/engine.md.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist

import megatronapp.trainer.lean_imports  # noqa: F401  before anything of megatron-core

# isort: split
from megatron.core import parallel_state

from megatronapp.core.errors import NotFoundError, UsageError
from megatronapp.core.generation import Beam, BeamsMoved, GenerationRequest, Prompt, Started, Stepped
from megatronapp.core.trace.values import Phase
from megatronapp.trainer import checkpoint, checkpoint_folder, data_paths, own_batches, parallel
from megatronapp.trainer.checkpoint_folder import Claim
from megatronapp.trainer.collected_logits import collected
from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.generate.generator import Generator
from megatronapp.trainer.launch import Opened, Parts, open_run
from megatronapp.trainer.loop import mean_losses
from megatronapp.trainer.model import ModelProvider, positions
from megatronapp.trainer.models.train_step import TrainStep
from megatronapp.trainer.optimizer import OptimizerProvider, SchedulerProvider
from megatronapp.trainer.own_batches import Batch
from megatronapp.trainer.plugins.base import Plugin
from megatronapp.trainer.stepping import Data, Stepper

Datasets = Callable[[], Sequence[Any]]
OwnData = Batch | Iterable[Batch]
"""This data rank's rows of a global batch, or its microbatches."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """`losses` by name and their sum `loss`, averaged over microbatches and data ranks: on ranks of the last pipeline
    stage, else empty and None. `logits`, where asked for: [rows, sequence, vocabulary] of this data rank, there too."""

    step: int
    loss: float | None
    losses: Mapping[str, float]
    learning_rate: float | None = None
    grad_norm: float | None = None
    updated: bool = False
    logits: torch.Tensor | None = None


class MegatronEngine:
    def __init__(
        self,
        flags: str | Sequence[str],
        *,
        train_step: type[TrainStep] | None = None,
        train_step_kwargs: Mapping[str, Any] | None = None,
        model_provider: ModelProvider | None = None,
        optimizer_provider: OptimizerProvider | None = None,
        scheduler_provider: SchedulerProvider | None = None,
        datasets: Datasets | None = None,
        plugins: Sequence[type[Plugin]] | None = None,
    ) -> None:
        """Joins the ranks that torchrun started, or is the only one, and builds all. Without --data-path, --mock-data
        and `datasets` each step is given its data. Raises MegatronAppError."""
        argv = shlex.split(flags) if isinstance(flags, str) else list(flags)
        without_data = datasets is None and not data_paths.are_named_by(argv)
        parts = Parts(
            train_step=train_step,
            train_step_kwargs=train_step_kwargs or {},
            model_provider=model_provider,
            optimizer_provider=optimizer_provider,
            scheduler_provider=scheduler_provider,
            datasets=(lambda: (None, None, None)) if without_data else datasets,
        )
        self._stack = ExitStack()
        self._opened: Opened = self._stack.enter_context(open_run(argv, plugins=plugins, parts=parts))
        if self._opened.stepper is None:
            raise UsageError("--forward-backward-disaggregating runs a loop of its own: leave it out of an engine")
        self._stepper: Stepper = self._opened.stepper
        self._validation: Data | None = None
        self._left = 0
        self._generator: Generator | None = None
        state = self._stepper.state
        self._opened.chain.training_begin(state.step, state.consumed_samples, loaded=state.loaded)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._stepper.finish_save()
            self._opened.chain.training_end()
            self._opened.chain.phase_begin(Phase.PAUSE)
        self._stack.__exit__(kind, error, trace)

    def close(self) -> None:
        """All ranks leave together. A `with` block does it too."""
        self.__exit__(None, None, None)

    # ---- what it is

    @property
    def config(self) -> TrainerConfig:
        return self._opened.config

    @property
    def device(self) -> torch.device:
        return self._opened.device

    @property
    def is_main_process(self) -> bool:
        """The last rank, which knows losses and logits."""
        return dist.get_rank() == self._opened.layout.world - 1

    @property
    def step(self) -> int:
        """Steps done, those before a restart included."""
        return self._stepper.state.step

    @property
    def consumed_samples(self) -> int:
        return self._stepper.state.consumed_samples

    @property
    def global_batch_size(self) -> int:
        return self._opened.layout.global_batch_size

    @property
    def microbatches(self) -> int:
        """Of a step, on each data rank."""
        return self._opened.layout.microbatches

    @property
    def end_of_document(self) -> int:
        """The token."""
        return self._opened.tokenizer.eod

    @property
    def chunks(self) -> Sequence[torch.nn.Module]:
        """This rank's part of the model, one module per virtual stage, not wrapped."""
        return self._opened.chunks

    @property
    def optimizer(self) -> Any:
        return self._stepper.state.optimizer

    @property
    def scheduler(self) -> Any:
        return self._stepper.state.scheduler

    @property
    def stopping(self) -> bool:
        """Whether this rank was asked to end, by SIGTERM: save, and leave the loop on all ranks."""
        return self._opened.borders.stopping()

    # ---- steps

    def train_step(self, data: OwnData | None = None, *, return_logits: bool = False) -> StepResult:
        """Forward, backward and optimizer over one global batch: the next one of the flags' data, or the given one."""
        of_step, size = self._own(data) if data is not None else (self._stepper.data, self.global_batch_size)
        self._check_has_data(of_step)
        with self._logits(wanted=return_logits) as logits:
            outcome = self._stepper.step(of_step, size)
        return self._result(
            outcome.losses,
            logits,
            learning_rate=outcome.learning_rate,
            grad_norm=outcome.grad_norm,
            updated=outcome.updated,
        )

    def eval_step(self, data: OwnData | None = None, *, return_logits: bool = False) -> StepResult:
        """The losses of one global batch, of the flags' validation data or the given one; nothing changes."""
        with self._stepper.evaluating(), self._logits(wanted=return_logits) as logits:
            of_step, size = self._own(data) if data is not None else (self._next_validation(), self.global_batch_size)
            losses = self._stepper.evaluate(of_step, size)
        return self._result(losses, logits)

    def _own(self, data: OwnData) -> tuple[Data, int]:
        """One iterator per chunk, and how many rows all data ranks have."""
        layout = self._opened.layout
        if isinstance(data, Mapping):
            rows = own_batches.microbatches(data, self.config)
        else:
            rows = own_batches.counted(data, layout.microbatches)
        iterators = [iter(rows) if reads else iter(()) for reads in self._stepper.batches.reads]
        size = len(rows) * layout.micro_batch_size * layout.data
        return [self._opened.chain.data(iterator) for iterator in iterators], size  # type: ignore[arg-type]

    def _check_has_data(self, data: Data) -> None:
        if data is self._stepper.data and not self._stepper.batches.has_training:
            raise UsageError("this step has no data: give it a batch, or the engine --data-path")

    def _next_validation(self) -> Data:
        batches = self._stepper.batches
        if not batches.has("valid"):
            raise UsageError("this step has no data: give it a batch, or the engine --data-path and --eval-iters")
        if self._validation is None or not self._left:
            self._validation, self._left = batches.evaluate("valid"), self.config.evaluation.eval_iters
        self._left -= 1
        return self._validation

    def _logits(self, *, wanted: bool) -> Any:
        return collected(self.chunks if wanted else (), self._opened.tokenizer.vocab_size)

    def _result(self, total: torch.Tensor | None, logits: list[torch.Tensor], **more: Any) -> StepResult:
        means = () if total is None else mean_losses(total)
        names = self._stepper.losses.names
        return StepResult(
            step=self.step,
            loss=sum(means) if means else None,
            losses=dict(zip(names, means, strict=True)) if means else {},
            logits=torch.cat(logits) if logits else None,
            **more,
        )

    # ---- text

    def generate(self, prompts: Sequence[Prompt], **options: Any) -> list[list[int]]:
        """Each prompt's tokens and those drawn after it, on all ranks; of beam search the best. `options` are a
        GenerationRequest's: max_new_tokens, sampling, seed, beam_width, length_penalty, add_bos, …"""
        request = GenerationRequest(prompts=tuple(prompts), **options)
        with self._stepper.phase(Phase.PAUSE), torch.no_grad(), self._text().ready():
            rows = _rows_of(self._text().generate(request))
        self._text().forget()
        return rows

    def _text(self) -> Generator:
        if self.config.model.model_type != "gpt":
            raise UsageError(f"--model-type {self.config.model.model_type} generates no text: only gpt does")
        if self._generator is None:
            opened, transformer = self._opened, self._stepper.transformer
            self._generator = Generator(
                opened.chunks, transformer, opened.tokenizer, positions(self.config), opened.device
            )
        return self._generator

    # ---- checkpoints

    def save(self, folder: str | Path | None = None) -> Path:
        """A checkpoint in `folder`, or in that of --save. Raises UsageError where there is neither."""
        if folder is not None:
            claim = Claim(Path(folder), self._opened.identity.run, self._opened.identity.attempt)
            parallel.on_first_rank(claim.take)
            self._stepper.claim = claim
        saved = self._stepper.save()
        if saved is None:
            raise UsageError("save needs a folder, here or by --save")
        return saved

    def load(self, folder: str | Path) -> None:
        """Go on from the newest checkpoint in `folder`, of any layout. Raises NotFoundError, and UsageError where it is
        of another model."""
        self._stepper.finish_save()
        source, state = Path(folder), self._stepper.state
        step = parallel.on_first_rank(lambda: checkpoint_folder.find_latest(source))
        if step is None:
            raise NotFoundError(f"{source} holds no checkpoint")
        parallel.on_first_rank(lambda: checkpoint.check_recipe(source, step, state.recipe))
        checkpoint.load(state, source, step, self.config.checkpoint, fresh=False)
        self._stepper.restart_data()


def _rows_of(events: Iterable[Any]) -> list[list[int]]:
    rows: list[list[int]] = []
    beams: tuple[Beam, ...] = ()
    for event in events:
        if isinstance(event, Started):
            rows = [[token.id for token in row] for row in event.rows]
        elif isinstance(event, Stepped):
            for token in event.tokens:
                if token.origin != "prompt":
                    rows[token.row].append(token.id)
        elif isinstance(event, BeamsMoved):
            beams = event.beams
    return [rows[0] + list(beams[0].ids)] if beams else rows


def averaged_over_data_ranks(losses: Sequence[torch.Tensor]) -> torch.Tensor:
    """[losses]: each one's mean over the data-parallel ranks, which call this together."""
    values = torch.stack([loss.detach().flatten()[0] for loss in losses])
    group = parallel_state.get_data_parallel_group()
    dist.all_reduce(values, group=group)
    return values / dist.get_world_size(group)


def gather_across_data_parallel_groups(values: torch.Tensor) -> torch.Tensor:
    """All data-parallel ranks' rows, in their order; they call this together."""
    group = parallel_state.get_data_parallel_group()
    parts = [torch.empty_like(values) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, values.contiguous(), group=group)
    return torch.cat(parts)
