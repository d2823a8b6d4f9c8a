"""The simulation compiled by numba, where that is installed: the very functions of core/pipeline, but faster."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from inspect import getsource
from pathlib import Path

import platformdirs

from megatronapp.core.pipeline import admission, lanes, policy
from megatronapp.core.pipeline.simulator import events
from megatronapp.core.pipeline.simulator.run import Engine

SOURCES = (lanes, admission, policy, events)
CALLED = (
    lanes.start, lanes.end, admission.admits, policy.choose,
    events.hand_on, events.join, events.serve, events.begin, events.receive,
)  # fmt: skip


@cache
def compiled_engine() -> Engine | None:
    """The compiled simulation; None without numba. Its first run on a machine takes some seconds, which compile it."""
    try:
        import numba
        from numba.extending import register_jitable
    except ImportError:
        return None
    # numba looks at the outermost function's file alone, and would go on using what was compiled from other sources.
    version = sha256("".join(map(getsource, SOURCES)).encode()).hexdigest()[:16]
    numba.config.CACHE_DIR = str(Path(platformdirs.user_cache_dir("megatronapp")) / "compiled" / version)
    for function in CALLED:
        register_jitable(inline="always")(function)  # a call would hand over each array in seven parts
    compiled: Engine = numba.njit(cache=True)(events.simulate)
    return compiled
