"""From flags to a finished run: builds every part in order, trains, and takes everything down again."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist

import megatronapp.trainer.lean_imports  # noqa: F401  before anything of megatron-core

# isort: split
from megatron.core.transformer.transformer_config import TransformerConfig

from megatronapp.core.errors import NotFoundError, UsageError
from megatronapp.core.generation_port import Port
from megatronapp.core.logging import get_logger
from megatronapp.core.trace.values import Identity, Schedule
from megatronapp.trainer import arguments, checkpoint, checkpoint_flags, checkpoint_folder, cpu, model, parallel
from megatronapp.trainer.batches import Batches
from megatronapp.trainer.borders import Borders
from megatronapp.trainer.checkpoint import TrainingState
from megatronapp.trainer.checkpoint_folder import Claim
from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.data import Tokenizer, build_tokenizer
from megatronapp.trainer.environment import Environment
from megatronapp.trainer.initialize import initialize
from megatronapp.trainer.layout import Layout
from megatronapp.trainer.loop import Trainer
from megatronapp.trainer.metrics import LogReporter, Reporter, TensorBoardReporter
from megatronapp.trainer.models import family_of
from megatronapp.trainer.optimizer import build_optimizer, build_scheduler
from megatronapp.trainer.pipeline import schedule
from megatronapp.trainer.placement import identity
from megatronapp.trainer.plugins.base import Plugin, PluginContext, Preparation, Runner, TimerHub, discover
from megatronapp.trainer.plugins.chain import PluginChain
from megatronapp.trainer.plugins.channel import AgentChannel
from megatronapp.trainer.plugins.generating import Between, MakeResident, Resident
from megatronapp.trainer.recipe import RunRecipe
from megatronapp.trainer.versions import library_versions
from megatronapp.trainer.worlds import World

log = get_logger(__name__)


def run(
    argv: Sequence[str], *, reporters: Sequence[Reporter] = (), plugins: Sequence[type[Plugin]] | None = None
) -> None:
    """Train as the flags say; `plugins` None takes all that are installed. Raises MegatronAppError."""
    kinds = discover() if plugins is None else plugins
    environment = Environment.read()
    config, namespace = arguments.parse(checkpoint_flags.completed(argv, environment), kinds)
    _check_plugins(config, namespace)
    asked = Preparation(
        environment=environment,
        config=config,
        world=World.whole(environment),
        p2p_transport=config.parallel.p2p_transport,
    )
    prepared = PluginChain.prepare(kinds, namespace, asked)
    environment, config, world, layout = prepared.environment, prepared.config, prepared.world, prepared.layout
    os.environ.update(prepared.variables)
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
        wanted = replace(config.parallel, p2p_transport=prepared.p2p_transport)
        pipeline = schedule.open_pipeline(wanted, environment, world, store, prepared.p2p_lane)
        context = PluginContext(
            identity=identity(environment, store),
            placement=parallel.placement(environment, layout.sizes(environment.world_size), device, prepared.role),
            world=world,
            schedule=_schedule(config, layout, tokenizer, start.step + 1),
            device=device,
            timers=TimerHub(),
            collector_address=environment.collector_address,
            token_file=environment.token_file,
            recipe=recipe.to_value(),
            request_stop=borders.request_stop,
            request_border=borders.request,
            tokenizer=tokenizer,
            max_positions=model.positions(config),
            pipeline=pipeline,
            store=store,
            stopping=borders.stopping,
            channel=AgentChannel(prepared.frame_bytes, prepared.operations_fd),
            make_resident=_resident_maker(config, tokenizer, device),
        )
        chain = PluginChain.create(kinds, namespace, context)
        reporters = [*_reporters(config, start.step + 1), *reporters] if dist.get_rank() == layout.world - 1 else []
        try:
            trainer = _build(config, layout, tokenizer, device, start, recipe, chain, context, reporters)
            trainer.train(borders)
            if pipeline is not None:
                pipeline.close()
        finally:
            chain.close()
            for reporter in reporters:
                reporter.close()
    parallel.stop()


_GPT_PLUGINS = ("scope", "enable_ws_server", "training_ws_port", "forward_backward_disaggregating")
"""Flags of plug-ins that look into the layers themselves."""


def _check_plugins(config: TrainerConfig, namespace: argparse.Namespace) -> None:
    """Raises UsageError for what the plug-ins' own schedules don't do."""
    training = config.training
    split = getattr(namespace, "forward_backward_disaggregating", False)
    fixed = split or getattr(namespace, "use_dpp", False) or config.parallel.p2p_transport == "native"
    if training.rampup_batch_size and fixed:
        raise UsageError(
            "--rampup-batch-size changes the number of microbatches, and --use-dpp, --forward-backward-disaggregating "
            "and --p2p-transport native plan all steps alike: leave one of them out"
        )
    for name in _GPT_PLUGINS if config.model.model_type != "gpt" else ():
        if getattr(namespace, name, None):
            flag, family = "--" + name.replace("_", "-"), config.model.model_type
            raise UsageError(f"{flag} knows the layers of a GPT: leave it out with --model-type {family}")
    for name in ("fp16", "calculate_per_token_loss"):
        if split and getattr(training, name):
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"--forward-backward-disaggregating scales its losses itself: leave {flag} out")


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where this run begins, and where it saves. `step` 0 without `source`: from first weights."""

    save: Path | None
    source: Path | None
    step: int
    fresh: bool
    """The checkpoint is another run's (--load): --finetune and --no-load-* apply. Else this run goes on."""

    @classmethod
    def find(cls, config: TrainerConfig, environment: Environment) -> Start:
        """The newest checkpoint of the folder to save to; where there is none, that of --load, which may name the same
        folder: a first start then."""
        folder = config.checkpoint.save or environment.checkpoint_dir
        save = Path(folder) if folder else None
        own = parallel.on_first_rank(lambda: checkpoint_folder.find_latest(save)) if save else None
        if save is not None and own is not None:
            return cls(save=save, source=save, step=own, fresh=False)
        if config.checkpoint.load is None or (save is not None and Path(config.checkpoint.load) == save):
            return cls(save=save, source=None, step=0, fresh=True)
        load = Path(config.checkpoint.load)
        step = parallel.on_first_rank(lambda: checkpoint_folder.find_latest(load))
        if step is None:
            raise NotFoundError(f"--load {load} holds no checkpoint")
        return cls(save=save, source=load, step=step, fresh=True)

    def check(self, recipe: RunRecipe) -> None:
        """Raises UsageError on all ranks where the checkpoint is of a model that computes something else."""
        source = self.source
        if source is not None:
            parallel.on_first_rank(lambda: checkpoint.check_recipe(source, self.step, recipe))

    def check_plugins(self, recipe: RunRecipe) -> None:
        """Raises UsageError on all ranks where plug-ins made another model of the same flags."""
        source = self.source
        if source is not None:
            parallel.on_first_rank(lambda: checkpoint.check_plugins(source, self.step, recipe))

    def load(self, state: TrainingState, config: TrainerConfig) -> None:
        """The checkpoint into `state`, where there is one."""
        if self.source is None:
            return
        checkpoint.load(state, self.source, self.step, config.checkpoint, fresh=self.fresh)
        state.loaded = True
        if dist.get_rank() == 0:
            log.info("checkpoint_loaded", folder=str(self.source), step=self.step)
            if not self.fresh and self.step >= config.training.train_iters:
                log.warning("nothing_left_to_train", hint=f"raise --train-iters, or remove {self.source}")

    def claim(self, identity: Identity) -> Claim | None:
        """The folder to save to as this run's, which other runs then leave alone."""
        if self.save is None:
            return None
        claim = Claim(self.save, identity.run, identity.attempt)
        parallel.on_first_rank(claim.take)
        return claim


def _build(
    config: TrainerConfig,
    layout: Layout,
    tokenizer: Tokenizer,
    device: torch.device,
    start: Start,
    recipe: RunRecipe,
    chain: PluginChain,
    context: PluginContext,
    reporters: Sequence[Reporter],
) -> Runner:
    """Model, data, optimizer and checkpoint, in the order in which plug-ins see them."""
    parallel.seed_everything(config.training.seed)
    transformer = model.transformer_config(config, layout, device)
    recipe = recipe.with_changes(chain.configure(transformer))
    start.check_plugins(recipe)
    vocabulary = tokenizer.vocab_size
    family = family_of(config.model)
    chunks = model.build_chunks(config, transformer, layout, vocabulary, device)
    initialize(chunks, transformer, config.training.seed, depths=family.depths(config.model))
    chain.models(chunks)
    batches = Batches.build(config, layout, tokenizer, chunks, device)
    if context.timers.listeners:
        transformer.timers = context.timers
    if (runner := chain.runner(chunks, batches)) is not None:
        return runner
    state = _state(config, transformer, layout, chunks, recipe, tokenizer)
    start.load(state, config)
    return Trainer(
        config,
        transformer,
        state,
        batches,
        chain,
        reporters,
        device=device,
        flops_per_sequence=family.flops_per_sequence(config, model.padded_vocabulary(vocabulary, config.model, layout)),
        claim=start.claim(context.identity),
        schedule=schedule.build(transformer, context.pipeline),
        pipeline=context.pipeline,
    )


def _state(
    config: TrainerConfig,
    transformer: TransformerConfig,
    layout: Layout,
    chunks: list[torch.nn.Module],
    recipe: RunRecipe,
    tokenizer: Tokenizer,
) -> TrainingState:
    """All that a checkpoint holds, with first weights."""
    wrapped = model.wrap(chunks, transformer, config.parallel)
    optimizer = build_optimizer(config, wrapped, transformer)
    return TrainingState(
        chunks=wrapped,
        optimizer=optimizer,
        scheduler=build_scheduler(config, optimizer),
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


def _reporters(config: TrainerConfig, first_step: int) -> list[Reporter]:
    reporters: list[Reporter] = [LogReporter()]
    if config.logging.tensorboard_dir:
        reporters.append(TensorBoardReporter(Path(config.logging.tensorboard_dir), first_step))
    return reporters
