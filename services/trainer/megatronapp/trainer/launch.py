"""From flags to a finished run: builds every part in order, trains, and takes everything down again."""

from __future__ import annotations

import argparse
import faulthandler
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

import megatronapp.trainer.lean_imports  # noqa: F401  before anything of megatron-core

# isort: split
from megatron.core.transformer.transformer_config import TransformerConfig

from megatronapp.core.errors import UsageError
from megatronapp.core.generation_port import Port
from megatronapp.core.trace.values import Identity, Schedule
from megatronapp.trainer import arguments, checkpoint_flags, cpu, model, parallel
from megatronapp.trainer.batches import Batches
from megatronapp.trainer.borders import Borders
from megatronapp.trainer.checkpoint import TrainingState
from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.data import Tokenizer, build_tokenizer
from megatronapp.trainer.environment import Environment
from megatronapp.trainer.initialize import initialize
from megatronapp.trainer.layout import Layout
from megatronapp.trainer.loop import Trainer
from megatronapp.trainer.metrics import LogReporter, Reporter, TensorBoardReporter
from megatronapp.trainer.model import ModelProvider
from megatronapp.trainer.models import family_of
from megatronapp.trainer.models.train_step import (
    LoggedLosses,
    StepSettings,
    TrainStep,
    build_step,
    step_arguments,
    train_step_class,
)
from megatronapp.trainer.optimizer import OptimizerProvider, SchedulerProvider, build_optimizer, build_scheduler
from megatronapp.trainer.pipeline import schedule
from megatronapp.trainer.placement import identity
from megatronapp.trainer.plugin_flags import check_plugin_flags
from megatronapp.trainer.plugins.base import Plugin, PluginContext, Preparation, Runner, TimerHub, discover
from megatronapp.trainer.plugins.chain import PluginChain
from megatronapp.trainer.plugins.channel import AgentChannel
from megatronapp.trainer.plugins.generating import Between, MakeResident, Resident
from megatronapp.trainer.recipe import RunRecipe
from megatronapp.trainer.run_start import Start
from megatronapp.trainer.stepping import Stepper
from megatronapp.trainer.throughput import Throughput
from megatronapp.trainer.versions import library_versions
from megatronapp.trainer.wandb_reporter import WandbReporter
from megatronapp.trainer.worlds import World

STDERR = 2
"""A notebook's sys.stderr is no file."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a caller of its own puts in place of the trainer's own parts; None keeps these."""

    train_step: type[TrainStep] | None = None
    train_step_kwargs: Mapping[str, Any] = field(default_factory=dict)
    model_provider: ModelProvider | None = None
    optimizer_provider: OptimizerProvider | None = None
    scheduler_provider: SchedulerProvider | None = None
    datasets: Callable[[], Sequence[Any]] | None = None
    """Training, validation and test set as maps from sample number to sample, each None where there is none."""


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A run of which all is built and no step is made. `stepper` None: a plug-in runs this rank, with `runner`."""

    config: TrainerConfig
    layout: Layout
    tokenizer: Tokenizer
    device: torch.device
    chain: PluginChain
    borders: Borders
    identity: Identity
    stepper: Stepper | None
    chunks: Sequence[torch.nn.Module]
    """Not wrapped."""
    runner: Runner | None = None


def run(
    argv: Sequence[str], *, reporters: Sequence[Reporter] = (), plugins: Sequence[type[Plugin]] | None = None
) -> None:
    """Train as the flags say; `plugins` None takes all that are installed. Raises MegatronAppError."""
    if not faulthandler.is_enabled():
        faulthandler.enable(STDERR)  # who dies in native code leaves the Python stacks of its threads
    with ExitStack() as stack:
        opened = stack.enter_context(open_run(argv, plugins=plugins))
        if dist.get_rank() == opened.layout.world - 1:
            first = 1 if opened.stepper is None else opened.stepper.state.step + 1
            reporters = [*_reporters(opened, first), *reporters]
            for reporter in reporters:
                stack.callback(reporter.close)
        else:
            reporters = []
        _runner(opened, reporters).train(opened.borders)


def _runner(opened: Opened, reporters: Sequence[Reporter]) -> Runner:
    if opened.stepper is None:
        assert opened.runner is not None, "a rank without a stepper has a plug-in's runner"  # noqa: S101
        return opened.runner
    vocabulary = model.padded_vocabulary(opened.tokenizer.vocab_size, opened.config.model, opened.layout)
    family, config = family_of(opened.config.model), opened.config

    def flops_of(length: int) -> float:
        of_length = replace(config, training=replace(config.training, seq_length=length))
        return family.flops_per_sequence(of_length, vocabulary)

    return Trainer(opened.stepper, reporters, Throughput(config.training, flops_of))


@contextmanager
def open_run(
    argv: Sequence[str],
    *,
    plugins: Sequence[type[Plugin]] | None = None,
    parts: Parts | None = None,
) -> Iterator[Opened]:
    """Process groups, data, model, optimizer and checkpoint, as the flags say; taken down at the end. Where the block
    ends with an error, groups are left as they are, as other ranks may be gone. Raises MegatronAppError."""
    kinds = discover() if plugins is None else plugins
    prepared, namespace, parts = _prepare(argv, kinds, parts or Parts())
    environment, config, world, layout = prepared.environment, prepared.config, prepared.world, prepared.layout
    tokenizer = build_tokenizer(config.data)
    cpu.install()
    if config.training.deterministic_mode:
        parallel.be_deterministic()
    device, store = parallel.start(environment, config.parallel, layout, world)
    with Borders(world.store(store)) as borders:
        start = Start.find(config, environment)
        given = arguments.plugin_flags(kinds, namespace)
        recipe = RunRecipe.of(config, layout, tokenizer, library_versions(device), given)
        start.check(recipe)
        context = _context(prepared, tokenizer, device, store, borders, recipe, first_step=start.step + 1)
        chain = PluginChain.create(kinds, namespace, context)
        try:
            yield _build(config, layout, tokenizer, device, start, recipe, chain, context, borders, parts)
            if context.pipeline is not None:
                context.pipeline.close()
        except Exception as error:
            if (known := chain.failure(error)) is not error:
                raise known from error
            raise
        finally:
            chain.close()
    parallel.stop()


def _prepare(
    argv: Sequence[str], kinds: Sequence[type[Plugin]], parts: Parts
) -> tuple[Preparation, argparse.Namespace, Parts]:
    """What the flags say and plug-ins make of it, and the environment that they ask for."""
    environment = Environment.read()
    config, namespace = arguments.parse(checkpoint_flags.completed(argv, environment), kinds)
    parts = _with_named_step(parts, config)
    check_plugin_flags(config, namespace)
    asked = Preparation(
        environment=environment,
        config=config,
        world=World.whole(environment),
        p2p_transport=config.parallel.p2p_transport,
    )
    prepared = PluginChain.prepare(kinds, namespace, asked)
    os.environ.update(prepared.variables)
    return prepared, namespace, parts


def _context(
    prepared: Preparation,
    tokenizer: Tokenizer,
    device: torch.device,
    store: Store,
    borders: Borders,
    recipe: RunRecipe,
    *,
    first_step: int,
) -> PluginContext:
    environment, config, world, layout = prepared.environment, prepared.config, prepared.world, prepared.layout
    wanted = replace(config.parallel, p2p_transport=prepared.p2p_transport)
    return PluginContext(
        identity=identity(environment, store),
        placement=parallel.placement(environment, layout.sizes(environment.world_size), device, prepared.role),
        world=world,
        schedule=_schedule(config, layout, tokenizer, first_step),
        device=device,
        timers=TimerHub(),
        collector_address=environment.collector_address,
        token_file=environment.token_file,
        recipe=recipe.to_value(),
        request_stop=borders.request_stop,
        request_border=borders.request,
        tokenizer=tokenizer,
        max_positions=model.positions(config),
        pipeline=schedule.open_pipeline(
            wanted, environment, world, store, prepared.p2p_lane, prepared.p2p_in_flight_bytes
        ),
        store=store,
        stopping=borders.stopping,
        channel=AgentChannel(prepared.frame_bytes, prepared.operations_fd),
        make_resident=_resident_maker(config, tokenizer, device),
    )


def _with_named_step(parts: Parts, config: TrainerConfig) -> Parts:
    """With the class that --train-step names. Raises UsageError."""
    named, text = config.training.train_step, config.training.train_step_kwargs
    if text and not named:
        raise UsageError("--train-step-kwargs are for --train-step: give both")
    if not named:
        return parts
    return replace(parts, train_step=train_step_class(named), train_step_kwargs=step_arguments(text))


def _build(
    config: TrainerConfig,
    layout: Layout,
    tokenizer: Tokenizer,
    device: torch.device,
    start: Start,
    recipe: RunRecipe,
    chain: PluginChain,
    context: PluginContext,
    borders: Borders,
    parts: Parts,
) -> Opened:
    """Model, data, optimizer and checkpoint, in the order in which plug-ins see them."""
    parallel.seed_everything(config.training.seed)
    transformer = model.transformer_config(config, layout, device)
    recipe = recipe.with_changes(chain.configure(transformer))
    start.check_plugins(recipe)
    family = family_of(config.model)
    losses = _losses(config, device, parts)
    chunks = model.build_chunks(config, transformer, layout, tokenizer.vocab_size, device, parts.model_provider)
    if parts.model_provider is None:
        initialize(chunks, transformer, config.training.seed, depths=family.depths(config.model))
    chain.models(chunks)
    batches = Batches.build(config, layout, tokenizer, chunks, device, parts.datasets)
    if context.timers.listeners:
        transformer.timers = context.timers
    opened = Opened(
        config=config,
        layout=layout,
        tokenizer=tokenizer,
        device=device,
        chain=chain,
        borders=borders,
        identity=context.identity,
        stepper=None,
        chunks=chunks,
    )
    if (runner := chain.runner(chunks, batches)) is not None:
        return replace(opened, runner=runner)
    state = _state(config, transformer, layout, chunks, recipe, tokenizer, parts)
    start.load(state, config)
    stepper = Stepper(
        config,
        transformer,
        state,
        batches,
        chain,
        losses,
        device=device,
        schedule=schedule.build(transformer, context.pipeline),
        pipeline=context.pipeline,
        claim=start.claim(context.identity),
    )
    return replace(opened, stepper=stepper)


def _losses(config: TrainerConfig, device: torch.device, parts: Parts) -> LoggedLosses:
    family = family_of(config.model)
    step = build_step(
        parts.train_step or family.train_step, StepSettings(config=config, device=device), parts.train_step_kwargs
    )
    return LoggedLosses(step, family.losses(config.model))


def _state(
    config: TrainerConfig,
    transformer: TransformerConfig,
    layout: Layout,
    chunks: list[torch.nn.Module],
    recipe: RunRecipe,
    tokenizer: Tokenizer,
    parts: Parts,
) -> TrainingState:
    """All that a checkpoint holds, with first weights."""
    wrapped = model.wrap(chunks, transformer, config.parallel)
    optimizer = build_optimizer(config, wrapped, transformer, parts.optimizer_provider)
    scheduler = parts.scheduler_provider(optimizer) if parts.scheduler_provider else build_scheduler(config, optimizer)
    return TrainingState(
        chunks=wrapped,
        optimizer=optimizer,
        scheduler=scheduler,
        layout=layout,
        distributed_optimizer=config.parallel.use_distributed_optimizer,
        recipe=recipe,
        tokenizer_files=tokenizer.files,
    )


def _schedule(config: TrainerConfig, layout: Layout, tokenizer: Tokenizer, first_step: int) -> Schedule:
    training = config.training
    vocabulary = model.padded_vocabulary(tokenizer.vocab_size, config.model, layout)
    return Schedule(
        name=layout.schedule,
        microbatches=layout.microbatches,
        total_steps=training.train_iters,
        first_step=first_step,
        sequence_length=training.seq_length,
        micro_batch_size=training.micro_batch_size,
        parameters=family_of(config.model).parameters(config.model, vocabulary, model.positions(config)),
    )


def _resident_maker(config: TrainerConfig, tokenizer: Tokenizer, device: torch.device) -> MakeResident:
    def make(
        chunks: Sequence[torch.nn.Module], transformer: TransformerConfig, port: Port | None, between: Between
    ) -> Resident:
        # Only here: a training that nobody asks for text needs none of it.
        from megatronapp.trainer.generate.generator import Generator
        from megatronapp.trainer.generate.resident import ResidentGenerator

        return ResidentGenerator(
            Generator(chunks, transformer, tokenizer, model.positions(config), device), port, between
        )

    return make


def _reporters(opened: Opened, first_step: int) -> list[Reporter]:
    config = opened.config
    reporters: list[Reporter] = [LogReporter()]
    if config.logging.tensorboard_dir:
        reporters.append(TensorBoardReporter(Path(config.logging.tensorboard_dir), first_step))
    if config.logging.wandb_project:
        reporters.append(WandbReporter(config.logging, opened.identity.run, asdict(config)))
    return reporters
