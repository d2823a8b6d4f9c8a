"""What the platform of this user keeps in its folder, whatever has become of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatronapp.cli.kept_token import kept_token
from megatronapp.cli.local import FILE, find
from megatronapp.core.errors import UnavailableError


def test_a_kept_token_that_is_no_text_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "pod-token").write_bytes(b"\xff\xfe")

    with pytest.raises(UnavailableError, match="pod-token can't be used: it is no text; remove it"):
        kept_token(tmp_path, "pod-token")


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"collector_address": 1e400, "token_file": "t", "page": ""}',
        b'{"collector_address": "127.0.0.1:99999", "token_file": "t", "page": ""}',
        b"\xff",
    ],
)
def test_a_platform_that_is_announced_in_nonsense_is_not_there(tmp_path: Path, text: bytes) -> None:
    (tmp_path / FILE).write_bytes(text)

    assert find(tmp_path) is None
