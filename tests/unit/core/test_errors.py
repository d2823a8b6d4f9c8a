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

    assert str(error) == f"port {address[1]} on 127.0.0.1 is in use; choose another with --collector-port"


def test_a_port_that_may_not_be_used_is_told_with_the_reason() -> None:
    error = PortInUseError("127.0.0.1", 80, "--port", "Permission denied")

    assert str(error) == "port 80 on 127.0.0.1 can't be used (Permission denied); choose another with --port"
