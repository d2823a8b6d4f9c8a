"""A schedule of megatron-core, run for a script as the trainer runs its own: data, forward step, timers and messages
between stages go by the plug-ins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from megatron.core.package_info import __version__
from megatron.core.utils import get_model_config

from megatronapp.core.trace.values import Phase
from megatronapp.trainer.attach.messages import say_once
from megatronapp.trainer.attach.session import Bounds, Session

KNOWN_CORE = ("0.15", "0.16")
"""Of megatron-core, the versions whose schedules are run over our port; of any other, messages between stages are not
seen."""


def prepared(session: Session, stock: Callable[..., Any], given: dict[str, Any]) -> Callable[[], Any]:
    """`stock(**given)` with the plug-ins on it, to be called once. What raises here is ours, what it raises theirs."""
    chunks = given["model"] if isinstance(given["model"], list) else [given["model"]]
    config = get_model_config(chunks[0])
    forward_only = bool(given.get("forward_only"))
    session.see_models(chunks, given)
    if not forward_only:
        session.begin(Bounds.OPTIMIZER)
    run = session.chain.schedule(_over_port(session, stock, config, given))
    options = {
        **given,
        "forward_only": forward_only,
        "data_iterator": _data(session, given["data_iterator"]) if not forward_only else given["data_iterator"],
        "forward_step_func": session.chain.forward_step(given["forward_step_func"]),
    }

    def call() -> Any:
        with _timers(session, config):
            if not forward_only:
                return run(**options)
            with session.phase(Phase.EVALUATION):
                return run(**options)

    return call


def _over_port(session: Session, stock: Callable[..., Any], config: Any, given: dict[str, Any]) -> Callable[..., Any]:
    """Through the port, where messages are seen; not where the script brings a communicator of its own."""
    if session.messages is None:
        return stock
    if reason := _unseen(config, given):
        session.messages = None
        say_once(f"messages between stages are not seen: {reason}")
        return stock
    from megatronapp.trainer.pipeline.schedule import PipelineSchedule  # other versions lack what it imports

    return PipelineSchedule(stock, config, session.messages, guest=True)


def _unseen(config: Any, given: dict[str, Any]) -> str:
    """Why the port can't stand in for what the schedule sends by; empty: it can."""
    if not __version__.startswith(KNOWN_CORE):
        return f"megatron-core {__version__} runs them in another way"
    if given.get("p2p_communicator") is not None or given.get("pg_collection") is not None:
        return "the script brings a communicator of its own"
    return "they go over a ring exchange" if config.use_ring_exchange_p2p else ""


def _data(session: Session, iterators: Any) -> Any:
    if isinstance(iterators, list):
        return [_data(session, each) for each in iterators]
    return None if iterators is None else session.chain.data(iterators)


@contextmanager
def _timers(session: Session, config: Any) -> Iterator[None]:
    """The plug-ins' timers beside those that the script has, for the time of the call."""
    own = config.timers
    config.timers = session.timers if own is None else _Both(session.timers, own)
    try:
        yield
    finally:
        config.timers = own


class _Both:
    """`config.timers` for the plug-ins and for the script, whose timers are inside."""

    def __init__(self, ours: Any, theirs: Any) -> None:
        self._ours = ours
        self._theirs = theirs

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> _BothTimer:
        return _BothTimer(self._ours(name), self._theirs(name, *args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)


class _BothTimer:
    def __init__(self, ours: Any, theirs: Any) -> None:
        self._ours = ours
        self._theirs = theirs

    def start(self, *args: Any, **kwargs: Any) -> None:
        self._ours.start()
        self._theirs.start(*args, **kwargs)

    def stop(self, *args: Any, **kwargs: Any) -> None:
        self._theirs.stop(*args, **kwargs)
        self._ours.stop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)
