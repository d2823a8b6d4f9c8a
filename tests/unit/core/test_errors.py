from __future__ import annotations

import socket

import pytest

from megatronapp.core.errors import PortInUseError


def test_a_taken_port_is_named_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = taken.getsockname()
        with pytest.raises(OSError, match="in use") as caught:
            socket.create_server(address)

    error = PortInUseError(*address, "--port", str(caught.value.strerror)).chosen_by("--collector-port")

    expected = f"port {address[1]} on 127.0.0.1 is not free (Address already in use); choose another with"
    assert str(error) == f"{expected} --collector-port"
