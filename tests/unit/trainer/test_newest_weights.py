"""Chunks whose weights come to them in their next forward pass."""

from __future__ import annotations

from types import SimpleNamespace

from megatronapp.trainer.newest_weights import newest_weights


class Chunk:
    """As megatron-core's wrapper: its hooks gather weights."""

    def __init__(self, *, gathers: bool) -> None:
        self.remove_forward_pre_hook_handles = {"module": object()} if gathers else {}

    def disable_forward_pre_hook(self) -> None:
        self.remove_forward_pre_hook_handles.clear()

    def enable_forward_pre_hook(self) -> None:
        assert not self.remove_forward_pre_hook_handles
        self.remove_forward_pre_hook_handles["module"] = object()


def test_they_are_gathered_inside_and_asked_for_again_after_it() -> None:
    chunk, sync = Chunk(gathers=True), object()
    config = SimpleNamespace(param_sync_func=sync)

    with newest_weights([chunk], config):
        assert not chunk.remove_forward_pre_hook_handles
        assert config.param_sync_func is None

    assert chunk.remove_forward_pre_hook_handles
    assert config.param_sync_func is sync


def test_chunks_that_have_them_are_left_as_they_are() -> None:
    off, bare, sync = Chunk(gathers=False), object(), object()
    config = SimpleNamespace(param_sync_func=sync)

    with newest_weights([off, bare], config):
        assert config.param_sync_func is sync

    assert not off.remove_forward_pre_hook_handles
