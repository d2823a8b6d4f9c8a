"""`python -m megatronapp.core.probe URL`: does the service at the other end answer? For health checks and `helm test`.

http://host:port/path wants a status below 400, grpc://host:port a gRPC health service that serves, tcp://host:port a
port that is open.
"""

from __future__ import annotations

import argparse
import socket
import sys
import time
from collections.abc import Callable, Sequence
from urllib.parse import SplitResult, urlsplit

import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc

from megatronapp.core.errors import MegatronAppError, UnavailableError, UsageError
from megatronapp.core.tls import ClientTls

RETRY_SECONDS = 0.5


def probe(url: str, timeout_seconds: float = 5.0) -> None:
    """Return when the service answers. Raises UnavailableError saying what is wrong, UsageError for no such URL."""
    target = urlsplit(url)
    ask = SCHEMES.get(target.scheme)
    if ask is None or not target.hostname:
        raise UsageError(
            f"{url!r} can't be probed; write it as http://host:port/path, grpc://host:port or tcp://host:port"
        )
    ask(target, timeout_seconds)


def wait(url: str, wait_seconds: float) -> None:
    """Probe until the service answers or the time is up; then raises the last UnavailableError."""
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            return probe(url)
        except UnavailableError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(RETRY_SECONDS)


def _http(target: SplitResult, timeout_seconds: float) -> None:
    try:
        answer = httpx.get(target.geturl(), timeout=timeout_seconds, trust_env=False)
    except httpx.HTTPError as error:
        raise UnavailableError(f"{target.geturl()} does not answer: {error}") from error
    if answer.is_error:
        raise UnavailableError(f"{target.geturl()} answers {answer.status_code}: {answer.text[:200].strip()}")


def _grpc(target: SplitResult, timeout_seconds: float) -> None:
    credentials = ClientTls.of_environment().credentials()
    opened = grpc.secure_channel(target.netloc, credentials) if credentials else grpc.insecure_channel(target.netloc)
    with opened as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_seconds)
        except grpc.RpcError as error:
            raise UnavailableError(f"{target.netloc} does not answer: {error.code().name}") from error
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise UnavailableError(f"{target.netloc} is not serving")


def _tcp(target: SplitResult, timeout_seconds: float) -> None:
    try:
        socket.create_connection((target.hostname or "", target.port or 0), timeout_seconds).close()
    except OSError as error:
        raise UnavailableError(f"{target.netloc} takes no connection: {error.strerror or error}") from error


SCHEMES: dict[str, Callable[[SplitResult, float], None]] = {"http": _http, "https": _http, "grpc": _grpc, "tcp": _tcp}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m megatronapp.core.probe", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--wait-seconds", type=float, default=0.0, help="try again for so long")
    arguments = parser.parse_args(argv)
    try:
        wait(arguments.url, arguments.wait_seconds)
    except MegatronAppError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
