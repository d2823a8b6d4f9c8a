"""Where the ranks of a job find each other: a listener each, and its address in a store that all can read."""

from __future__ import annotations

import json
import os
import secrets
import socket
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from megatronapp.rdma.errors import TransferTimeoutError, TransportError

LOOPBACK = "127.0.0.1"
SOCKET_BYTES = 4 << 20
BACKLOG = 1024
"""Callers who wait while this rank does something else; the kernel may allow fewer."""


class Store(Protocol):
    """The part of torch's Store that is used."""

    def set(self, key: str, value: str, /) -> Any: ...

    def get(self, key: str, /) -> bytes: ...

    def wait(self, keys: list[str], timeout: timedelta, /) -> Any: ...


def open_store(store: Store | str | os.PathLike[str], world_size: int) -> Store:
    """A store as it is, or one in a file that all ranks reach. Raises ValueError for a path that can't be one."""
    if isinstance(store, str | os.PathLike):
        from torch._C._distributed_c10d import FileStore

        path = Path(store).absolute()
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise ValueError(f"no store can be made at {path}: name a file in a folder that all ranks can write to")
        opened: Store = FileStore(str(path), world_size)
        return opened
    return store


@dataclass(frozen=True)
class Endpoint:
    """Where a rank listens. `local` is the name of an abstract Unix socket, for ranks of the same `host`."""

    address: str
    port: int
    local: str
    host: str


class Directory:
    """Endpoints and the secret of one job's attempt, in the store."""

    def __init__(self, store: Store, job: str, epoch: int) -> None:
        self.context = f"{job}/{epoch}"
        self._store = store
        self._prefix = f"megatronapp.rdma/{self.context}"

    def publish(self, rank: int, endpoint: Endpoint) -> None:
        self._store.set(f"{self._prefix}/{rank}", json.dumps(endpoint.__dict__))

    def find(self, rank: int, timeout_seconds: float) -> Endpoint:
        """Raises TransferTimeoutError when the rank does not appear in time, TransportError for what is no address."""
        published = self._get(str(rank), f"rank {rank} did not appear", timeout_seconds)
        try:
            found = Endpoint(**json.loads(published))
        except (ValueError, TypeError, RecursionError) as error:
            raise TransportError(f"the store holds no address of rank {rank}: {error}") from error
        texts = (found.address, found.local, found.host)
        if type(found.port) is not int or not all(isinstance(text, str) for text in texts):
            raise TransportError(f"the store holds no address of rank {rank}: {found}")
        return found

    def secret(self, rank: int, given: bytes | None, timeout_seconds: float) -> bytes:
        """The one given, else one that rank 0 makes: then whoever reads the store can join."""
        if given is not None:
            return given
        if rank == 0:
            made = secrets.token_hex(32)
            self._store.set(f"{self._prefix}/secret", made)
            return made.encode()
        return self._get("secret", "rank 0 did not appear", timeout_seconds)

    def _get(self, key: str, missing: str, timeout_seconds: float) -> bytes:
        name = f"{self._prefix}/{key}"
        try:
            self._store.wait([name], timedelta(seconds=timeout_seconds))
            return self._store.get(name)
        except RuntimeError as error:  # torch's stores raise several subclasses
            raise TransferTimeoutError(f"{missing} within {timeout_seconds:g} s: {error}") from error


class Listener:
    """Listens on one address and, for ranks of this host, on an abstract Unix socket.

    Raises TransportError for an address that is not this host's.
    """

    def __init__(self, address: str) -> None:
        try:
            self._tcp = socket.create_server((address, 0), family=_family(address), backlog=BACKLOG)
        except OSError as error:
            raise TransportError(
                f"can't listen on {address}: {error}; Config.address must be this rank's own"
            ) from error
        self._local = socket.socket(socket.AF_UNIX)
        local = f"megatronapp-rdma-{secrets.token_hex(16)}"
        self._local.bind(f"\0{local}")
        self._local.listen(BACKLOG)
        for listening in self.sockets:
            listening.setblocking(False)
        self.endpoint = Endpoint(address, self._tcp.getsockname()[1], local, host_identity())

    @property
    def sockets(self) -> tuple[socket.socket, socket.socket]:
        """Without blocking."""
        return self._tcp, self._local

    def close(self) -> None:
        self._tcp.close()
        self._local.close()


def connect(endpoint: Endpoint, timeout_seconds: float, *, local: bool) -> socket.socket:
    """To a rank's listener; over the Unix socket where `local` and both are on one host.

    Raises TransportError when nobody answers there.
    """
    if local and endpoint.host == host_identity():
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout_seconds)
        try:
            connection.connect(f"\0{endpoint.local}")
            return tuned(connection)
        except ConnectionError:  # another network namespace of this host
            connection.close()
    try:
        return tuned(socket.create_connection((endpoint.address, endpoint.port), timeout_seconds))
    except (OSError, OverflowError) as error:
        raise TransportError(f"nobody answers at {endpoint.address}:{endpoint.port}: {error}") from error


def tuned(connection: socket.socket) -> socket.socket:
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connection.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def own_address(configured: str | None) -> str:
    """Where to listen: as configured, else on the interface towards MASTER_ADDR, else on loopback."""
    if configured is not None:
        return configured
    master = os.environ.get("MASTER_ADDR")
    if not master:
        return LOOPBACK
    try:
        family, kind, _, _, where = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(where)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise TransportError(
            f"no way to MASTER_ADDR={master} ({error}): set Config.address to this rank's address"
        ) from error


def host_identity() -> str:
    """The same for processes that can meet on a Unix socket: one boot of one kernel, one network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{Path('/proc/self/ns/net').readlink()}"


def pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
