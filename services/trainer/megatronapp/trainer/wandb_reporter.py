"""The training log in Weights & Biases, with or without a network (WANDB_MODE=offline)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megatronapp.core.errors import ConfigError
from megatronapp.trainer.config import LoggingConfig
from megatronapp.trainer.metrics import EvaluationReport, StepReport, evaluation_values, step_values

MAX_REASON = 300


class WandbReporter:
    """One run of W&B for a run here: a restart goes on with it."""

    def __init__(self, config: LoggingConfig, run: str, settings: Mapping[str, Any]) -> None:
        """`settings` are shown as the run's configuration. Raises ConfigError."""
        try:
            import wandb
        except ImportError as error:
            raise ConfigError("--wandb-project needs wandb: pip install megatronapp[wandb], or leave it out") from error
        try:
            self._run = wandb.init(
                project=config.wandb_project,
                entity=config.wandb_entity,
                name=config.wandb_exp_name,
                dir=config.wandb_save_dir,
                id=run,
                resume="allow",
                config=dict(settings),
                settings=wandb.Settings(console="off", silent=True),
            )
        except (wandb.Error, OSError) as error:
            reason = " ".join(str(error).split())[:MAX_REASON] or type(error).__name__
            raise ConfigError(f"W&B does not start ({reason}): set WANDB_API_KEY, or WANDB_MODE=offline") from error

    def step(self, report: StepReport) -> None:
        self._run.log(step_values(report), step=report.step)

    def evaluation(self, report: EvaluationReport) -> None:
        self._run.log(evaluation_values(report), step=report.step)

    def close(self) -> None:
        self._run.finish()
