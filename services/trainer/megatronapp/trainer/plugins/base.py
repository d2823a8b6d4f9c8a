"""The plug-in protocol: everything a plug-in may hook, in the order in which the trainer calls it.

    add_arguments → prepare → [process groups, the port to the neighbouring stages]
        → create → configure → models → (runner | forward_step → data → schedule → optimizer_built → optimizer)
        → training_begin → (step_begin → [timers, messages] → step_end
           | phase_begin → evaluation → phase_end
           | border_due → phase_begin(pause) → border → phase_end(pause)
           | phase_begin → checkpoint → phase_end)*
        → training_end → phase_begin(pause) → close; with an error: failure → close

of a model that is served in place of being trained (--serve), for plug-ins that say so (`serves`):

    add_arguments → prepare → [process groups] → create → configure → models → generator → port
        → phase_begin(pause) → (border_due → border)* → close

`prepare` is called for every installed plug-in, the hooks from `configure` on for those that `create` made. Between two
steps the order is: evaluation, border, checkpoint; each only where it is due.

Plug-ins nest: the first one discovered (scan) is the outermost, so that it sees what the others do. With none on,
no hook exists and training is stock megatron-core. docs/plugins.md says how to write one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from megatronapp.core.errors import PluginMissingError
from megatronapp.core.str_enum import StrEnum
from megatronapp.core.trace.values import Attached, Evaluation, Identity, Phase, Placement, Progress, Recipe, Schedule
from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.environment import Environment
from megatronapp.trainer.layout import Layout
from megatronapp.trainer.plugins.channel import AgentChannel
from megatronapp.trainer.plugins.generating import MakeResident, TextGenerator
from megatronapp.trainer.worlds import World

if TYPE_CHECKING:
    from typing import Self

    import torch
    from megatron.core.transformer.transformer_config import TransformerConfig
    from torch._C._distributed_c10d import Store

    from megatronapp.core.generation import Limits
    from megatronapp.core.generation_port import Port
    from megatronapp.trainer.batches import Batches
    from megatronapp.trainer.borders import Borders
    from megatronapp.trainer.data import Tokenizer
    from megatronapp.trainer.pipeline.port import PipelineMessages

ENTRY_POINT_GROUP = "megatronapp.trainer.plugins"
ORDER = ("scan", "megatrace", "scope", "dpp", "fbd", "faults")

ForwardStep = Callable[..., Any]
"""forward_step(data_iterator, model_chunk) -> (output, loss function), as megatron-core's schedules call it."""
ScheduleFunction = Callable[..., Any]
"""What megatron.core.pipeline_parallel.get_forward_backward_func() returns."""


class Degree(StrEnum):
    """How much of a program is seen: all of one whose steps megatron-core's schedules run, as the trainer's; of any
    other that trains, steps and collectives; of the rest collectives alone."""

    FULL = "full"
    STEPS = "steps and collectives"
    COLLECTIVES = "collectives alone"


class TimerListener(Protocol):
    """Told of megatron-core's named timers (`forward-compute`, `backward-recv`, `all-grads-sync`, …). Of a program
    without its schedules, `forward-compute`, `backward-compute` and `optimizer` are told in its place."""

    def start(self, name: str) -> None: ...

    def stop(self, name: str) -> None: ...


@dataclass
class TimerHub:
    """`config.timers` for several listeners, nested: the first one starts first and stops last."""

    listeners: list[TimerListener] = field(default_factory=list)

    def __call__(self, name: str, log_level: int | None = None) -> _Timer:
        return _Timer(name, self.listeners)


@dataclass(slots=True)
class _Timer:
    name: str
    listeners: Sequence[TimerListener]

    def start(self, barrier: bool = False) -> None:
        for listener in self.listeners:
            listener.start(self.name)

    def stop(self, barrier: bool = False) -> None:
        for listener in reversed(self.listeners):
            listener.stop(self.name)


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What is known before the first process group exists; a plug-in hands it on, changed by `dataclasses.replace`."""

    environment: Environment
    config: TrainerConfig
    """This rank's settings."""
    world: World
    """The ranks that form process groups with this one: all of torchrun's, or those of one role."""
    own_layout: Layout | None = None
    """Where a plug-in lays the world out otherwise than `config` says. The product of its sizes must be the number of
    the world's ranks, all of which must come to the same."""
    role: str = ""
    """What this rank does beyond its place in the layout, such as "forward": the plug-in's own word, which
    `Placement.role` carries to the platform."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables to set before the device, NCCL and torch.distributed are first used."""
    p2p_transport: Literal["torch", "native"] = "torch"
    """What carries messages between pipeline stages: what --p2p-transport says, or what a plug-in needs."""
    p2p_lane: str = ""
    """Lane of the native transport without which it does not start; empty: the fastest that there is."""
    p2p_in_flight_bytes: int | None = None
    """Of what is ready for one peer, the native transport moves so many bytes at once; None: all of it."""
    frame_bytes: int = 0
    """Of the ring through which frames go to the agent (`PluginContext.channel`): a power of two from 4 KiB to 256 MiB;
    0: there is none."""
    operations_fd: int = -1
    """Of a second segment, with operations of NCCL, that the agent gets; -1: there is none."""

    @property
    def layout(self) -> Layout:
        """Sizes of the world's parallel axes. Raises UsageError where they don't divide it."""
        return self.own_layout or Layout.of(self.config, self.world.size)


@dataclass(frozen=True)
class PluginContext:
    """What the trainer knows when distributed groups exist and no model is built yet."""

    identity: Identity
    placement: Placement
    world: World
    schedule: Schedule
    device: torch.device
    timers: TimerHub
    collector_address: str
    token_file: str
    request_stop: Callable[[], None]
    """Lets all ranks of the world end after the step that follows the one now running, as SIGTERM does."""
    request_border: Callable[[], None]
    """Lets all ranks come to a border (`Plugin.border`): after the step that follows the one now running. From any
    thread of any rank."""
    tokenizer: Tokenizer | None = None
    max_positions: int = 0
    """The longest sequence that the model takes."""
    pipeline: PipelineMessages | None = None
    """The port to the stages before and after this one: to post messages and to observe them. None: one stage."""
    recipe: Recipe = field(default=Recipe())
    store: Store | None = None
    """The job's, for what ranks agree on; a plug-in's keys begin with its name."""
    stopping: Callable[[], bool] = lambda: False
    """Whether this rank was asked to end: who holds the others at a border lets them go."""
    channel: AgentChannel = field(default_factory=AgentChannel)
    degree: Degree = Degree.FULL
    attached: Attached = Attached.UNSPECIFIED
    """To a program that is not the trainer's own."""
    serving: bool = False
    """A checkpoint answers requests; nothing is trained."""
    make_resident: MakeResident | None = None
    """Of a training's model: what generates text at its borders. None: it can't."""


class StepHooks(Protocol):
    """Those of all plug-ins that a loop over steps calls, as `Plugin` describes them."""

    def data(self, iterator: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]: ...

    def forward_step(self, function: ForwardStep) -> ForwardStep: ...

    def training_begin(self, step: int, consumed_samples: int, *, loaded: bool) -> None: ...

    def training_end(self) -> None: ...

    def step_begin(self, step: int) -> None: ...

    def step_end(self, step: int, progress: Progress | None) -> None: ...

    def phase_begin(self, phase: Phase) -> None: ...

    def phase_end(self, phase: Phase) -> None: ...


class Runner(Protocol):
    """What drives a rank."""

    def train(self, borders: Borders) -> None:
        """To the last step, or to the one after which the rank was asked to stop. Raises TrainingError."""


class Plugin:
    """Base of all plug-ins; a hook that is not overridden changes nothing."""

    name: ClassVar[str]
    serves: ClassVar[bool] = False
    """Whether it takes part where a checkpoint is served."""

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        """Declare the plug-in's flags in a group of its own."""

    @classmethod
    def prepare(cls, args: argparse.Namespace, preparation: Preparation) -> Preparation:
        """Set environment variables, change the layout, take a role: before process groups exist, and whether or not
        `create` will make the plug-in: look at the flags. Raises UsageError, and PluginMissingError for a machine that
        lacks what the plug-in needs."""
        return preparation

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self | None:
        """The plug-in for this run, or None when the flags leave it off. Raises UsageError on wrong flags, and
        PluginMissingError where the machine lacks what the plug-in needs."""
        raise NotImplementedError

    def configure(self, config: TransformerConfig) -> None:
        """Change the model's configuration before the model is built."""

    def models(self, chunks: Sequence[torch.nn.Module]) -> None:
        """See the model chunks, one per virtual stage, before they are wrapped for data parallelism."""

    def forward_step(self, function: ForwardStep) -> ForwardStep:
        """Wrap the forward step."""
        return function

    def data(self, iterator: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Wrap the iterator over this rank's microbatches (one per model chunk)."""
        return iterator

    def schedule(self, function: ScheduleFunction) -> ScheduleFunction:
        """Wrap or replace the pipeline schedule."""
        return function

    def runner(self, chunks: Sequence[torch.nn.Module], batches: Batches, hooks: StepHooks) -> Runner | None:
        """What drives this rank in place of the trainer's loop: on a rank that trains no weights, which therefore has
        no gradients' buffers, no optimizer and no checkpoint. It calls the other plug-ins' `hooks`."""
        return None

    def training_begin(self, step: int, consumed_samples: int, *, loaded: bool) -> None:
        """Training goes on after this step, 0 being none, and after so many sequences of the data; `loaded`: from the
        weights of a checkpoint."""

    def training_end(self) -> None:
        """The last step, its evaluation and its checkpoint are done, and all went well."""

    def step_begin(self, step: int) -> None:
        """Before a training step; steps count from 1 and go on over restarts."""

    def step_end(self, step: int, progress: Progress | None) -> None:
        """After the optimizer. `progress` is what the log says of this step, where this rank knows it."""

    def optimizer_built(self, optimizer: Any) -> None:
        """See megatron-core's optimizer, with what a checkpoint had of it, before the first step. Never on a rank that
        trains no weights."""

    def optimizer(self, step: Callable[[], Any]) -> Callable[[], Any]:
        """Wrap the optimizer's step."""
        return step

    def checkpoint(self, write: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the writing of this rank's part of a checkpoint; no other rank is waited for in it."""
        return write

    def phase_begin(self, phase: Phase) -> None:
        """Evaluation, a checkpoint or a pause begins, inside or between steps. The pause in which a run ends does not
        end itself."""

    def phase_end(self, phase: Phase) -> None:
        """It ended."""

    def evaluation(self, evaluation: Evaluation) -> None:
        """What an evaluation found, before its phase ends; on ranks that know the loss."""

    def border_due(self, step: int) -> bool:
        """Whether a border follows this step that nobody needs to ask for. All ranks must say the same. Serving, it is
        asked between two passes of the model, at least once a second, and rank 0's answer counts."""
        return False

    def border(self, step: int) -> bool:
        """A border after this step, which somebody asked for: every rank is in it after the same step, no message is
        on its way, and every rank holds the newest weights. It may wait, generate, and change parameters, alike on all
        data-parallel replicas; whatever collectives it calls, all ranks must call, and none may keep the others waiting
        longer than --distributed-timeout-minutes. Returns whether it changed parameters, which the optimizer then takes
        over."""
        return False

    def generator(self, generator: TextGenerator) -> None:
        """Serving, on every rank, when the model is loaded: what makes its text (generate/generator.py)."""

    def port(self, limits: Limits) -> Port | None:
        """Serving, on rank 0, when the model is loaded: who asks it (core/generation_port.py)."""
        return None

    def failure(self, error: Exception) -> Exception | None:
        """This rank's run ended with an error: one that says more, where the plug-in knows what it came of. Before
        `close`. Must not raise, and must return within a second or two."""
        return None

    def close(self) -> None:
        """Training or serving ended, well or not. Must not raise and must return within seconds."""


def installed() -> list[str]:
    """Names of the installed plug-ins, outermost first; foreign ones come after ours, by name. Loads none."""
    found = entry_points(group=ENTRY_POINT_GROUP).names
    return [name for name in ORDER if name in found] + sorted(found - set(ORDER))


def discover() -> list[type[Plugin]]:
    """All installed plug-ins, in the order of `installed`. Raises PluginMissingError for one that can't be loaded."""
    found = entry_points(group=ENTRY_POINT_GROUP)
    return [_load(found[name]) for name in installed()]


def _load(entry: EntryPoint) -> type[Plugin]:
    try:
        plugin: type[Plugin] = entry.load()
    except (ImportError, AttributeError) as error:
        package = entry.dist.name if entry.dist else entry.value
        raise PluginMissingError(
            f"the plug-in {entry.name} of {package} can't be loaded ({error}): install what it needs, or uninstall it"
        ) from error
    return plugin
