"""Where a run begins: from first weights, from another run's checkpoint, or where this run itself has ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from megatronapp.core.errors import NotFoundError
from megatronapp.core.logging import get_logger
from megatronapp.core.trace.values import Identity
from megatronapp.trainer import checkpoint, checkpoint_folder, parallel
from megatronapp.trainer.checkpoint import TrainingState
from megatronapp.trainer.checkpoint_folder import Claim
from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.environment import Environment
from megatronapp.trainer.recipe import RunRecipe

log = get_logger(__name__)


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
