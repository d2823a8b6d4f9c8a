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
OLDEST = (3, 10)
HERE = os.path.realpath(os.path.join(__file__, os.pardir))  # noqa: PTH118  (pathlib takes milliseconds to load)


def run_hidden() -> None:
    """The sitecustomize that this one stands before, as if this were not there."""
    others = [path for path in sys.path if not is_here(path)]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def is_here(path: str) -> bool:
    return os.path.realpath(path or os.curdir) == HERE


def find_ours() -> None:
    """Where what a rank needs lies beside this folder (attach/light.py): our packages before the environment's, so that
    rank and agent are of one version; the native recorder behind the environment's, which is built for this Python."""
    beside = next((os.path.dirname(path) for path in sys.path if is_here(path)), "")  # noqa: PTH120
    rank, native = (os.path.join(beside, name) for name in ("rank", "native"))  # noqa: PTH118
    if os.path.isdir(rank):  # noqa: PTH112
        sys.path.insert(0, rank)
        sys.path.append(native)


def attach() -> None:
    if not os.environ.get(VARIABLE):
        return
    if sys.version_info < OLDEST:
        os.environ[VARIABLE] = ""
        sys.stderr.write(f"megatronapp: not attached: {sys.executable} is older than Python 3.10\n")
        return
    try:
        find_ours()
        from megatronapp.trainer.attach.process import attachment_of_process

        attachment_of_process(os.environ[VARIABLE])
    except Exception as error:  # noqa: BLE001  (the script is not ours to stop)
        os.environ[VARIABLE] = ""  # said once: not by the processes that this one starts
        sys.stderr.write(f"megatronapp: not attached: {error}: install megatronapp where {sys.executable} finds it\n")


run_hidden()
attach()
