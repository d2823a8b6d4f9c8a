"""Python imports this at the start of every process under `megatronapp attach`: its folder comes first on PYTHONPATH.

It must hold whatever Python and whatever packages the process has, so that it imports nothing before it knows that it
is wanted, and never fails.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

VARIABLE = "MEGATRONAPP_ATTACH"


def run_hidden() -> None:
    """The sitecustomize that this one stands before, as if this were not there."""
    here = os.path.realpath(os.path.join(__file__, os.pardir))  # noqa: PTH118  (pathlib takes milliseconds to load)
    others = [path for path in sys.path if os.path.realpath(path or os.curdir) != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def attach() -> None:
    if not os.environ.get(VARIABLE):
        return
    try:
        from megatronapp.trainer.attach.process import attachment_of_process

        attachment_of_process(os.environ[VARIABLE])
    except Exception as error:  # noqa: BLE001  (the script is not ours to stop)
        os.environ[VARIABLE] = ""  # said once: not by the processes that this one starts
        sys.stderr.write(f"megatronapp: not attached: {error}: install megatronapp where {sys.executable} finds it\n")


run_hidden()
attach()
