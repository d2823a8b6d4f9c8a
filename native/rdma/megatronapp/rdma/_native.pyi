import enum
from typing import Any, TypeVar

import torch

class Status(enum.Enum):
    PENDING = ...
    DONE = ...
    PEER_LOST = ...
    TIMED_OUT = ...
    MISMATCH = ...
    CANCELLED = ...
    ABORTED = ...
    CORRUPT = ...

class Direction(enum.Enum):
    SEND = ...
    RECEIVE = ...

class Message:
    """One message on its way. Made by the engine."""

    seen: bool
    """A stream waits for it: it is not news any more when it arrives."""

    @property
    def engine(self) -> Any:
        """That moves it."""
    @property
    def tag(self) -> Any: ...
    @property
    def tensor(self) -> torch.Tensor: ...
    @property
    def id(self) -> int: ...
    @property
    def direction(self) -> Direction: ...
    @property
    def peer(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def cuda(self) -> bool:
        """Whether it is of GPU memory."""
    @property
    def in_use(self) -> bool:
        """Whether the GPU or a network card may still read or write its tensor."""
    @property
    def status(self) -> Status: ...
    @property
    def good(self) -> bool:
        """Whether it has ended well."""
    @property
    def failed(self) -> bool:
        """Whether it has ended otherwise."""
    @property
    def reason(self) -> str: ...
    @property
    def described(self) -> tuple[int, tuple[int, ...], bool]:
        """Dtype, shape, whether on a GPU."""
    @property
    def other(self) -> tuple[int, tuple[int, ...], bool]:
        """Of a mismatch: what the peer has."""
    @property
    def done_ns(self) -> int:
        """When it ended, on the monotonic clock; 0 before."""
    def done(self) -> bool:
        """Whether it has ended, well or not."""

MessageType = TypeVar("MessageType", bound=Message)

class Engine:
    def __init__(
        self,
        *,
        spin_seconds: float,
        heartbeat_seconds: float,
        dead_after_seconds: float,
        checksum: bool,
        chunk_bytes: int,
        receive_pool_bytes: int,
        open_rounds: int,
        in_flight_bytes: int,
    ) -> None: ...
    def attach(
        self,
        *,
        rank: int,
        socket: int,
        inbound: int,
        outbound: int,
        cuda_ipc: bool,
        own_chunks: int,
        peer_chunks: int,
        ucx_address: bytes,
        gpu: bool,
    ) -> None: ...
    def open_ucx(self) -> bytes: ...
    def post(
        self,
        kind: type[MessageType],
        owner: object,
        unfinished: set[Any],
        receives: bool,
        peer: int,
        source: int,
        tag: tuple[int, ...],
        tensor: torch.Tensor,
        stream: int | None,
        device: int,
        deadline_seconds: float,
        priority: int,
        /,
    ) -> MessageType | None:
        """A message of type `kind`, added to `unfinished`; None for a tensor that can't be moved, or that is on another
        GPU than `device`. GPU memory waits for `stream`, or for its device's current one.

        Raises IndexError for a peer that is not connected, ValueError for a tag, RuntimeError where no lane moves it,
        BufferError where open messages hold all that there is.
        """
    def wait(self, message: Message, timeout_seconds: float, unfinished: set[Any], /) -> int:
        """0: it is under way still; 1: it has ended well, and is taken out of `unfinished`; 2: otherwise."""
    def wait_any(self, messages: list[Any], timeout_seconds: float, /) -> int | None:
        """The place of the one that ended first; None: none has in time."""
    def wait_stream(self, message: Message, stream: int, /) -> bool:
        """False: of host memory. Raises RuntimeError for a stream that is being captured, BufferError as `post`."""
    def flush(self, timeout_seconds: float, /) -> bool: ...
    def cancel(self, message: Message, timeout_seconds: float, /) -> bool | None:
        """None: it is not known in time."""
    def probe(
        self, peer: int, mask: int, value: int, timeout_seconds: float, /
    ) -> list[tuple[int, int, tuple[int, tuple[int, ...], bool], int, int]]:
        """Peer (-1: any), packed tag, what, bytes, when it came."""
    def drain(self) -> list[Any]: ...
    def descriptor(self) -> int: ...
    def in_flight(self) -> dict[int, int]: ...
    def failed(self) -> dict[int, str]: ...
    def abort(self, reason: str, /) -> None: ...
    def close(self, timeout_seconds: float, /) -> bool: ...

def pack_tag(tag: tuple[int, ...], source: int, /) -> int: ...
def dtype_names() -> tuple[str, ...]: ...
def make_segment() -> int: ...
def check_cuda_driver() -> None: ...
def pool_bytes() -> int:
    """GPU memory of this process that its engines, also closed ones, hold to receive into."""

def end_settled() -> int: ...
def ucx_version() -> str: ...
def protocol() -> tuple[int, int, int]: ...
def crc32c(data: bytes, /) -> int: ...
