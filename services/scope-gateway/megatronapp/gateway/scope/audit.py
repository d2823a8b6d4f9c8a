"""Who did what to a model, and why: appended, never changed; in the log, and the newest in memory for the page."""

from __future__ import annotations

import time
from collections import deque

from google.protobuf import json_format

from megatronapp.core.generation import GenerationRequest
from megatronapp.core.generation_json import command_from_json
from megatronapp.core.logging import get_logger
from megatronapp.v1 import scope_pb2

log = get_logger(__name__)

KEPT = 1000
MAX_DETAIL = 2000


def _interventions(text: str) -> str:
    """Of a request, what is done to its passes; of others nothing."""
    command = command_from_json(text)
    changes = command.interventions if isinstance(command, GenerationRequest) else ()
    return ", ".join(f"{each.kind} at layers[{each.layers or '*'}].{each.site}" for each in changes)


class Audit:
    def __init__(self) -> None:
        self._kept: deque[tuple[str, scope_pb2.ScopeAudit]] = deque(maxlen=KEPT)

    def record(self, run: str, by: str, action: str, command: scope_pb2.ScopeCommand) -> scope_pb2.ScopeAudit:
        """What is asked for, before it is done. Prompts are left out: they may be nobody else's business."""
        shown = scope_pb2.ScopeCommand()
        shown.CopyFrom(command)
        if action == "generation":
            shown.generation.command = _interventions(shown.generation.command)
        elif action == "compare":
            shown.compare.generation = ""
        detail = json_format.MessageToJson(getattr(shown, action), indent=None)[:MAX_DETAIL]
        return self._append(
            run,
            scope_pb2.ScopeAudit(by=by, action=action, detail=detail, reason=command.reason, command=command.id),
        )

    def settle(
        self, run: str, command: str, by: str, action: str, result: scope_pb2.ScopeResult
    ) -> scope_pb2.ScopeAudit:
        """What came of the command that was recorded under this id."""
        outcome = "refused" if result.ack.code else "done"
        detail = result.ack.hint[:MAX_DETAIL]
        return self._append(
            run, scope_pb2.ScopeAudit(by=by, action=action, detail=detail, outcome=outcome, command=command)
        )

    def of(self, run: str) -> list[scope_pb2.ScopeAudit]:
        """The oldest first."""
        return [entry for owner, entry in self._kept if owner == run]

    def _append(self, run: str, entry: scope_pb2.ScopeAudit) -> scope_pb2.ScopeAudit:
        entry.unix_ns = time.time_ns()
        self._kept.append((run, entry))
        log.info(
            "scope_audit",
            run=run,
            by=entry.by,
            action=entry.action,
            detail=entry.detail,
            reason=entry.reason,
            outcome=entry.outcome,
        )
        return entry
