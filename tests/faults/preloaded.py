"""Imported once by the process that a case's ranks are forked from: all that they use, plug-ins included."""

from __future__ import annotations

from megatronapp.trainer import launch  # noqa: F401
from megatronapp.trainer.plugins.base import discover
from tests.faults import rank  # noqa: F401

discover()
