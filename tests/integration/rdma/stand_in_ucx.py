"""What becomes of UCX's endpoints, with a stand-in for UCX.

python tests/integration/rdma/stand_in_ucx.py libucp.so.0
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys

LIBRARY = ctypes.CDLL(
    sys.argv[1], mode=ctypes.RTLD_GLOBAL
)  # before the engine opens the machine's own, where it has one
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import gc  # noqa: E402

from megatronapp.rdma import _native  # noqa: E402


def engine_with_peers(count: int) -> tuple[_native.Engine, list[socket.socket]]:
    engine = _native.Engine(
        spin_seconds=50e-6,
        heartbeat_seconds=1.0,
        dead_after_seconds=10.0,
        checksum=False,
        chunk_bytes=0,
        receive_pool_bytes=0,
        open_rounds=4,
        in_flight_bytes=0,
    )
    address = engine.open_ucx()
    others = []
    for rank in range(1, count + 1):
        mine, other = socket.socketpair()
        engine.attach(
            rank=rank,
            socket=os.dup(mine.fileno()),
            inbound=-1,
            outbound=-1,
            cuda_ipc=False,
            own_chunks=-1,
            peer_chunks=-1,
            ucx_address=address,
            gpu=False,
        )
        others.append(other)
    return engine, others


if __name__ == "__main__":
    engine, others = engine_with_peers(3)
    assert (LIBRARY.stand_in_made(), LIBRARY.stand_in_closed()) == (3, 0)
    others[0].close()  # one peer dies
    while 1 not in engine.failed():
        engine.drain()
    assert LIBRARY.stand_in_closed() == 1  # at once, while the engine goes on with the others
    engine.close(0.0)
    assert LIBRARY.stand_in_closed() == LIBRARY.stand_in_forced() == 3
    del engine
    gc.collect()
    print("every endpoint is closed once, and its late error harms nothing")
