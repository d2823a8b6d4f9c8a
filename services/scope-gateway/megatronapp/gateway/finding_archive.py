"""All findings that the store still has, without their evidence: what else happened to a rank, a node, a device."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from megatronapp.core.findings import Finding
from megatronapp.core.findings_store import FindingsStore


@dataclass(frozen=True, slots=True)
class Subject:
    """What a history is of; what is left out is not asked for. A rank is one of a job."""

    job: str = ""
    rank: int | None = None
    node: str = ""
    device: str = ""

    def concerns(self, finding: Finding) -> bool:
        return (
            (not self.job or finding.job == self.job)
            and (self.rank is None or self.rank in finding.ranks)
            and (not self.node or finding.node == self.node)
            and (not self.device or self.device in finding.devices or self.device == finding.gpu_uuid)
        )


@dataclass
class FindingArchive:
    """Reads of the store only what has changed since it was asked last: some thousand findings are some MB."""

    store: FindingsStore
    _known: dict[str, Finding] = field(default_factory=dict)
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def find(self, subject: Subject, newer: Iterable[Finding] = ()) -> list[Finding]:
        """The newest first; `newer`: what the store may not have yet. Raises UnavailableError."""
        async with self._reading:
            versions = {finding.id: finding.updated_unix_ns for finding in self._known.values()}
            changed, gone = await self.store.changes(versions)
            for id_ in gone:
                del self._known[id_]
            self._known.update((finding.id, _without_evidence(finding)) for finding in changed)
            found = dict(self._known)
        for finding in newer:
            if finding.id not in found or finding.updated_unix_ns > found[finding.id].updated_unix_ns:
                found[finding.id] = _without_evidence(finding)
        chosen = (finding for finding in found.values() if subject.concerns(finding))
        return sorted(chosen, key=lambda finding: (-finding.opened_unix_ns, finding.id))


def _without_evidence(finding: Finding) -> Finding:
    return finding.model_copy(update={"evidence": ()})
