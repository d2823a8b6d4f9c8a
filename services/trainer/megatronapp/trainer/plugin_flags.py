"""What the plug-ins' own schedules don't do, said before anything starts."""

from __future__ import annotations

import argparse

from megatronapp.core.errors import UsageError
from megatronapp.trainer.config import TrainerConfig

_GPT_PLUGINS = ("scope", "enable_ws_server", "training_ws_port", "forward_backward_disaggregating")
"""Flags of plug-ins that look into the layers themselves."""


def check_plugin_flags(config: TrainerConfig, namespace: argparse.Namespace) -> None:
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
    if split and training.train_step:
        raise UsageError("--train-step has a loss of its own, which --forward-backward-disaggregating does not know")
    for name in ("fp16", "calculate_per_token_loss"):
        if split and getattr(training, name):
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"--forward-backward-disaggregating scales its losses itself: leave {flag} out")
