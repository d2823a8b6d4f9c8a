"""NCCL's RAS as a witness, by a stand-in of it on a port of the loopback: nothing waits, whatever is at the other
end."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from megatronapp.core.trace.limits import MAX_RAS
from megatronapp.trainer.agent import ras
from megatronapp.trainer.agent.ras import NcclRas
from megatronapp.trainer.agent.stacks import StackTaker

HEAD = """NCCL version 2.28.9 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          4            1          4        4

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         4         4         4   RUNNING  {status}

Errors
======

{errors}
Warnings
========

{warnings}
"""
MISMATCH = """#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 64
  Rank 2 has launched up to operation 63 -- GPU 2 managed by process 1650386 on node 10.0.0.1
"""
DEAD = """DEAD
  1 process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 10.0.0.2 managing GPU 5
"""
BEHIND = HEAD.format(status="MISMATCH", errors="", warnings=MISMATCH)
Serve = Callable[[Callable[[socket.socket], None]], NcclRas]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Something that listens, and does so with each who comes."""
    listening = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def start(answer: Callable[[socket.socket], None]) -> NcclRas:
        def accept() -> None:
            line, _ = listening.accept()
            with line, contextlib.suppress(OSError):
                answer(line)

        threads.append(threading.Thread(target=accept, daemon=True))
        threads[-1].start()
        return NcclRas(listening.getsockname()[:2])

    yield start
    listening.close()
    for thread in threads:
        thread.join(10)


def says(text: str) -> Callable[[socket.socket], None]:
    """As RAS does: the time-out is taken, then comes the report in pieces, then it closes."""

    def answer(line: socket.socket) -> None:
        asked = b""
        while not asked.endswith(b"status\n"):
            asked += line.recv(100)
        assert asked == b"timeout 3\nverbose status\n"
        line.sendall(b"OK\n")
        for at in range(0, len(text), 700):
            line.sendall(text[at : at + 700].encode())
            time.sleep(0.001)

    return answer


def heard(witness: NcclRas, seconds: float = 10.0) -> str:
    witness.ask()
    deadline = time.monotonic() + seconds
    text = ""
    while witness.asking and not text and time.monotonic() < deadline:
        text = witness.poll()
        time.sleep(0.002)
    assert not witness.asking
    return text


def test_who_is_behind_is_told_as_nccl_says_it(serve: Serve) -> None:
    assert heard(serve(says(BEHIND))) == f"Warnings\n{MISMATCH}".strip()


def test_it_can_be_asked_again(serve: Serve) -> None:
    witness = serve(says(BEHIND))
    heard(witness)

    serve(says(HEAD.format(status="INCOMPLETE", errors=DEAD, warnings=MISMATCH)))

    assert heard(witness) == f"Errors\n{DEAD}\nWarnings\n{MISMATCH}".strip()


def test_where_nothing_is_wrong_its_communicators_are_told() -> None:
    assert "RUNNING  OK" in ras.report(HEAD.format(status="OK", errors="", warnings=""))


@pytest.mark.parametrize(
    "text", ["", "HTTP/1.1 400 Bad Request\r\n\r\n", "OK\n", "\0" * 1000, "Errors\n======\n\nall\n"]
)
def test_another_program_says_nothing(serve: Serve, text: str) -> None:
    assert heard(serve(says(text))) == ""


def test_a_report_is_bounded_and_has_nothing_that_a_terminal_acts_on() -> None:
    told = ras.report(HEAD.format(status="DEAD", errors="DEAD \x1b[31m" * 10_000, warnings=MISMATCH))

    assert len(told) <= MAX_RAS
    assert "\x1b" not in told


def test_who_sends_for_ever_is_left(serve: Serve) -> None:
    def for_ever(line: socket.socket) -> None:
        while True:
            line.sendall(b"NCCL version 2.28.9\n" * 1000)

    assert heard(serve(for_ever)) == ""


def test_who_never_answers_is_left(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras, "ANSWER_SECONDS", 0.1)

    assert heard(serve(lambda line: time.sleep(0.5))) == ""


def test_where_nobody_listens_nothing_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()[:2]

    assert heard(NcclRas(address)) == ""


@pytest.mark.parametrize(
    ("environment", "address"),
    [
        ({}, ("127.0.0.1", 28028)),
        ({"NCCL_RAS_ADDR": "localhost:5000"}, ("127.0.0.1", 5000)),
        ({"NCCL_RAS_ADDR": "[::1]:5000"}, ("::1", 5000)),
        ({"NCCL_RAS_ADDR": "10.0.0.1:5000"}, None),
        ({"NCCL_RAS_ADDR": "localhost:99999999999999"}, None),
        ({"NCCL_RAS_ADDR": "localhost"}, None),
        ({"NCCL_RAS_ENABLE": "0"}, None),
    ],
)
def test_it_is_asked_on_the_loopback_alone(environment: dict[str, str], address: tuple[str, int] | None) -> None:
    assert ras.address(environment) == address


def test_a_nodes_first_rank_asks_on_gpus_alone() -> None:
    assert ras.asks(8, 0, "GPU-1")
    assert not ras.asks(9, 1, "GPU-1")
    assert not ras.asks(0, 0, "")
    assert not ras.asks(1024, 0, "GPU-1")


def test_it_comes_behind_a_ranks_stack(serve: Serve) -> None:
    taker = StackTaker(os.getpid(), None, ras=serve(says(BEHIND)))
    first = taker.ask() or taker.poll()

    deadline = time.monotonic() + 20
    while (second := taker.poll()) is None or not second.ras:
        assert time.monotonic() < deadline
        time.sleep(0.01)

    assert second.ras.startswith("Warnings")
    assert first is None or (second.text, second.source) == (first.text, first.source)
    assert not taker.asking
    taker.close()
