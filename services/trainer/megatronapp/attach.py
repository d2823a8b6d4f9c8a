"""MegaScan on a training loop of one's own, in two lines (docs/attach.md):

    from megatronapp import attach

    with attach(job="team/llama") as run:
        for batch in loader:
            ...
            run.step()

The module is what is called: `megatronapp` itself is a namespace, in which nothing can be defined.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from megatronapp.trainer.attach.run import Run


class _Attach(ModuleType):
    def __call__(
        self, *, job: str = "", collector_address: str = "", trace: bool = False, trace_dir: str | Path | None = None
    ) -> Run:
        """A context manager; enter it when process groups exist and before the loop takes a schedule or shards a model.

        job: `<namespace>/<name>`; collector_address: host:port; each else what the environment says
        (MEGATRONAPP_JOB, MEGATRONAPP_COLLECTOR_ADDRESS). trace, trace_dir: as --trace and --trace-dir of
        `megatronapp attach`. Without a collector and a folder nothing is attached. Raises UsageError for arguments that
        make no sense; whatever else fails is said in one line, and the loop goes on alone.
        """
        flags = ["--trace"] if trace else []
        flags += ["--trace-dir", str(trace_dir)] if trace_dir else []
        flags += ["--collector-address", collector_address] if collector_address else []
        return Run(flags, job)


sys.modules[__name__].__class__ = _Attach
