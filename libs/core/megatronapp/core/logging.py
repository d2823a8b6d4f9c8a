"""Structured logs: JSON in pods, readable on a terminal."""

from __future__ import annotations

import logging
import sys
from typing import Literal, cast

import structlog

LogFormat = Literal["auto", "json", "console"]


def configure(level: str = "info", fmt: LogFormat = "auto") -> None:
    """Set up logging of the whole process; "auto" is console on a terminal and JSON elsewhere."""
    console = fmt == "console" or (fmt == "auto" and sys.stderr.isatty())
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),  # a line in one write: ranks share a pipe
        cache_logger_on_first_use=False,
    )


def get_logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """A logger that says where it speaks: `log.info("event_name", key=value)`."""
    return cast("structlog.typing.FilteringBoundLogger", structlog.get_logger(source=name))
