"""What all hooks write to, and how they attach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from megatronapp.trainer.plugins.scan.communicators import Communicators
from megatronapp.trainer.plugins.scan.frontier import Frontiers
from megatronapp.trainer.plugins.scan.recorder import Recorder

Work = tuple[int, int]
"""(tokens, sum of squared sequence lengths) of a microbatch."""


@dataclass(slots=True)
class Probe:
    """The hooks' shared state. `on` is true inside a training step and outside of its phases; outside of it spans are
    not recorded, but the frontiers still move."""

    recorder: Recorder
    communicators: Communicators
    frontiers: Frontiers
    on: bool = False
    full: bool = False
    works: dict[int, Work] = field(default_factory=dict)
    """Of this step's microbatches. A stage without data knows of none."""
    microbatch: int = -1
    """The one in its forward or backward now."""
    settle: Callable[[], None] = lambda: None
    """Ends the layer spans that are open when a microbatch's forward or backward ends."""
