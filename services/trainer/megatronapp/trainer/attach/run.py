"""The script's own word on its steps: `with attach(...) as run: … run.step()`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from megatronapp.trainer.attach import arguments
from megatronapp.trainer.attach.attachment import Attachment
from megatronapp.trainer.attach.process import attachment_of_process

if TYPE_CHECKING:
    from typing import Self


class Run:
    def __init__(self, flags: Sequence[str], job: str) -> None:
        """Raises UsageError."""
        self._flags = arguments.encode(flags)
        arguments.check(arguments.decode(self._flags))
        if job:
            os.environ["MEGATRONAPP_JOB"] = job
        self._attachment: Attachment | None = None

    def __enter__(self) -> Self:
        from megatronapp.trainer.attach.session import Bounds

        self._attachment = attachment_of_process(self._flags)
        if (session := self._attachment.open_now()) is not None:
            session.begin(Bounds.SCRIPT)
        return self

    def step(
        self,
        *,
        loss: float | None = None,
        learning_rate: float | None = None,
        grad_norm: float | None = None,
        tokens_per_second: float | None = None,
    ) -> None:
        """A step has ended, and the next one begins. What is given of it is shown; take numbers that are there already:
        reading one from a device waits for it."""
        from megatronapp.core.trace.values import Progress
        from megatronapp.trainer.attach.session import Bounds

        session = self._attachment.session if self._attachment is not None else None
        if session is None:
            return
        progress = Progress(
            loss=loss, learning_rate=learning_rate, grad_norm=grad_norm, tokens_per_second=tokens_per_second
        )
        session.end(Bounds.SCRIPT, None if progress == Progress() else progress)
        session.begin(Bounds.SCRIPT)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._attachment is not None:
            self._attachment.close()
