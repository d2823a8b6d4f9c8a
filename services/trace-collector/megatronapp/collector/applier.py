"""What a message changes: what is known of its job, the rows to be stored, and what goes to the bus.

Live and on replay by the same code; duplicates are left out here.
"""

from __future__ import annotations

from collections.abc import Sequence

from megatronapp.collector import envelope
from megatronapp.collector.dedup import Dedup
from megatronapp.collector.jobs import Attempt, AttemptKey, Jobs
from megatronapp.collector.metrics import CollectorMetrics
from megatronapp.collector.outbox import Outbox
from megatronapp.collector.received import Received, SenderKey
from megatronapp.collector.store import Manifest


class Applier:
    def __init__(self, manifest: Manifest, jobs: Jobs, outbox: Outbox, metrics: CollectorMetrics) -> None:
        """Goes on where the manifest ends."""
        self._jobs = jobs
        self._outbox = outbox
        self._metrics = metrics
        self._dedup = Dedup.from_json(manifest.dedup)
        self.controls: dict[str, bytes] = {run: bytes.fromhex(text) for run, text in manifest.controls.items()}
        """Run → its last TraceControl; for who hears of controls to write."""
        self._shown: dict[AttemptKey, int] = {}
        """The clocks' anchors when they were last shown."""

    def seen(self, sender: SenderKey, seq: int) -> bool:
        """Whether the message has been applied before."""
        return self._dedup.contains(sender, seq)

    def apply(self, position: int, received: Received, *, publish: bool, again: bool = False) -> Attempt | None:
        """Returns the attempt that the message has changed; None for a duplicate, unless it is applied `again`.

        Raises ForbiddenError when the run is another job's.
        """
        self._jobs.check_owner(received.identity)
        metrics = self._metrics.of(received.identity.job)
        if not self._dedup.add(received.sender.key, received.message.seq) and not again:
            metrics.duplicates.inc()
            return None
        attempt = self._jobs.of(received)
        lost = attempt.take(received)
        metrics.messages[received.kind].inc()
        metrics.dropped.inc(lost.events)
        metrics.operations_lost.inc(lost.operations)
        if received.kind == "batch":
            metrics.batches.inc()
            metrics.events.inc(received.message.batch.count)
            self._show_clocks(attempt)
        elif publish:
            self._publish(position, received, attempt)
        return attempt

    def publish(self, position: int, received: Received) -> None:
        """What has been applied and stored already, but has not been on the bus."""
        if received.kind != "batch":
            self._publish(position, received, self._jobs.of(received))

    def manifest(self, write: int, stored: int, published: int) -> Manifest:
        """What has to be known when the journal up to these positions is gone."""
        controls = {run: control.hex() for run, control in self.controls.items()}
        return Manifest(write, stored, published, self._dedup.to_json(), controls, self._jobs.owners)

    def forget(self, attempts: Sequence[AttemptKey]) -> None:
        """Those that are no longer kept."""
        self._jobs.forget(attempts)
        self._dedup.forget(attempts)
        kept = {attempt.run for attempt in self._jobs}
        for run, attempt in attempts:
            self._shown.pop((run, attempt), None)
            if run not in kept:
                self.controls.pop(run, None)

    def _show_clocks(self, attempt: Attempt) -> None:
        anchors = attempt.clocks.alignment.anchors
        if anchors != self._shown.get(attempt.key, 0):
            self._shown[attempt.key] = anchors
            self._metrics.show_clocks(attempt.job, attempt.clocks)

    def _publish(self, position: int, received: Received, attempt: Attempt) -> None:
        reading = attempt.clocks.at(received.identity.rank, received.rank_time_ns)
        value = envelope.with_clock(received.record, reading.offset_ns, reading.error_ns)
        self._outbox.put(position, received.identity.run, value)
