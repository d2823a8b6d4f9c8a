"""The plug-in's flags, and where the log says that one can look."""

from __future__ import annotations

import argparse
import os

from megatronapp.core.errors import UsageError
from megatronapp.core.logging import get_logger
from megatronapp.trainer.environment import GATEWAY_ADDRESS

log = get_logger(__name__)

FRAME_BYTES = 32 << 20
"""Of the ring: the largest frame is an eighth."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("scope", "look into the model, disturb it, pause the training (MegaScope)")
    group.add_argument("--scope", action="store_true", help="let the platform's page look into this training")
    group.add_argument("--enable-ws-server", action="store_true", help="as --scope; no port is opened")
    group.add_argument(
        "--training-ws-port", type=int, metavar="PORT", help="as --scope; the port is that of the platform's page"
    )
    group.add_argument(
        "--scope-sae-dir",
        metavar="DIR",
        help="a folder of sparse autoencoders, each a folder as sae_lens writes it, whose features can be looked at",
    )


def wanted(args: argparse.Namespace) -> bool:
    return bool(args.scope or args.enable_ws_server or args.training_ws_port is not None)


def check(args: argparse.Namespace) -> None:
    """Raises UsageError."""
    if args.scope_sae_dir is not None and not wanted(args):
        raise UsageError("--scope-sae-dir is for --scope: give both")
    if args.training_ws_port is not None and not 0 < args.training_ws_port < 65536:
        raise UsageError(f"--training-ws-port {args.training_ws_port} is no port")


def report_where(args: argparse.Namespace) -> None:
    gateway = os.environ.get(GATEWAY_ADDRESS, "")
    if not gateway:
        hint = f"set {GATEWAY_ADDRESS}, or start the job with megatronapp run"
        log.warning("scope_without_gateway", reason="nobody can look: no gateway is known", hint=hint)
        return
    flags = [name for name in ("enable_ws_server", "training_ws_port") if getattr(args, name)]
    instead = {"instead_of": ", ".join(f"--{name.replace('_', '-')}" for name in flags)} if flags else {}
    log.info("scope", page="/jobs/<run>/scope of the gateway", gateway=gateway, **instead)
