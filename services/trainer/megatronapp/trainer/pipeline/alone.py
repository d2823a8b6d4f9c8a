"""A pipeline of one stage: nobody is before or after it."""

from __future__ import annotations

from collections.abc import Sequence

from megatronapp.trainer.pipeline.port import Handle, Post


class NoTransport:
    """Carries nothing, for a schedule that runs over the port whatever the pipeline's length."""

    ordered = False
    errors: tuple[type[Exception], ...] = ()

    def begin(self) -> None:
        pass

    def end(self) -> None:
        pass

    def close(self) -> None:
        pass

    def post(self, posts: Sequence[Post], *, batch: bool = False) -> list[Handle]:
        assert not posts, "a single stage has no neighbours"  # noqa: S101
        return []

    def wait_any(self, timeout_seconds: float) -> None:
        pass

    def in_flight(self) -> tuple[int, int]:
        return 0, 0

    def lost(self) -> str:
        return ""
