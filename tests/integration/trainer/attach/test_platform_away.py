"""The platform is somebody else's trouble: a script ends as it would alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import grpc
import pytest

from megatronapp.v1 import trace_pb2_grpc
from tests.support.attached import SCRIPTS, Ended, run
from tests.support.served_collector import served

STEPS, CODE = 4, 3
"""Of the script, which ends with a code of its own."""


class Unwilling(trace_pb2_grpc.TraceIngestServicer):
    """A collector that answers each rank with `answer`."""

    def __init__(self, answer: Callable[[grpc.ServicerContext], object]) -> None:
        self._answer = answer

    def Stream(self, request_iterator: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        next(request_iterator)
        self._answer(context)
        yield from ()


@contextmanager
def collector(answer: Callable[[grpc.ServicerContext, grpc.Server], object] | None) -> Iterator[str]:
    """Its address. None: it is of a version that knows no such call."""
    servicer = None if answer is None else Unwilling(lambda context: answer(context, server))
    with served(servicer) as (server, address):
        yield address


def refuse(context: grpc.ServicerContext, server: grpc.Server) -> None:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is not known")


def die(context: grpc.ServicerContext, server: grpc.Server) -> None:
    Thread(target=server.stop, args=(0,)).start()


@pytest.fixture(scope="module")
def plain() -> Ended:
    return run(SCRIPTS / "ddp.py", STEPS, CODE)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_collector_that_is_not_there_changes_nothing(plain: Ended, free_port: int) -> None:
    attached = run(SCRIPTS / "ddp.py", STEPS, CODE, attach=["--collector-address", f"127.0.0.1:{free_port}"])

    assert attached.code == plain.code != 0
    assert attached.lines("loss", "heavy") == plain.lines("loss", "heavy") != []
    assert attached.output.count("collector_unreachable") == 1


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("answer", [refuse, None, die], ids=["wrong token", "other version", "killed"])
def test_a_platform_that_refuses_or_dies_changes_nothing_and_is_one_line(
    plain: Ended, answer: Callable[[grpc.ServicerContext, grpc.Server], object] | None
) -> None:
    with collector(answer) as address:
        attached = run(SCRIPTS / "ddp.py", STEPS, CODE, attach=["--collector-address", address])

    warnings = [line for line in attached.output.splitlines() if "warning" in line and "collector" in line]
    assert attached.code == plain.code != 0
    assert attached.lines("loss", "heavy") == plain.lines("loss", "heavy") != []
    assert len(warnings) == 1, attached.output
