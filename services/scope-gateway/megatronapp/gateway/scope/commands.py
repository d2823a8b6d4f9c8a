"""Commands of viewers: who may give which, to which ranks they go, and what came of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from megatronapp.core.errors import UsageError
from megatronapp.core.generation import Command, Control, GenerationRequest
from megatronapp.core.generation_json import command_from_json
from megatronapp.gateway.scope.limits import MAX_NAME, MAX_REASON, RefusedError
from megatronapp.gateway.scope.producers import Producer
from megatronapp.v1 import scope_pb2

TIMEOUT_SECONDS = 60.0
MAX_PENDING = 1024

NEEDED_ROLE = {
    "generation": "generate",
    "compare": "generate",
    "train": "train",
    "perturb": "perturb",
    "perturb_clear": "perturb",
}
"""What a rank must be able to do. Actions that are not here are none of a viewer's."""
DISTURBING = frozenset({"perturb", "compare"})
"""Need a reason, which the audit keeps."""
GOES_ON = frozenset({"generation", "compare"})
"""The model goes on with these, and with all of `train` but these verbs: what a viewer has asked to see before must be
in force first, on all ranks."""
STANDS = frozenset({"pause", "renew"})
_VERBS = {
    "train": frozenset({"pause", "step", "run_to", "resume", "renew"}),
}


def goes_on(action: str, command: scope_pb2.ScopeCommand) -> bool:
    return action in GOES_ON or (action == "train" and command.train.do not in STANDS)


OnResult = Callable[[scope_pb2.ScopeResult], None]


@dataclass(slots=True)
class Pending:
    """One command on its way; `answers` by rank."""

    viewer: str
    id: str
    action: str
    by: str
    asked: frozenset[int]
    until: float
    on_result: OnResult | None = None
    answers: dict[int, scope_pb2.ScopeAck] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return self.answers.keys() >= self.asked

    def result(self) -> scope_pb2.ScopeResult:
        """The first refusal, else the latest border from which all have it in force."""
        answers = list(self.answers.values())
        refused = [ack for ack in answers if ack.code]
        if refused:
            ack = refused[0]
        elif not self.done:
            missing = sorted(self.asked - self.answers.keys())
            ack = scope_pb2.ScopeAck(code="failed", hint=f"ranks {missing[:8]} have not answered; see their logs")
        else:
            ack = max(answers, key=lambda each: each.effective_step, default=scope_pb2.ScopeAck())
        answer = scope_pb2.ScopeAck(command=self.id, code=ack.code, hint=ack.hint, effective_step=ack.effective_step)
        return scope_pb2.ScopeResult(command=self.id, ack=answer, ranks=len(self.asked), answered=len(answers))


def check(command: scope_pb2.ScopeCommand, *, operates: bool) -> str:
    """The action's name. Raises RefusedError."""
    action = command.WhichOneof("action") or ""
    if action not in NEEDED_ROLE:
        raise RefusedError(
            "invalid", f"{action or 'this'} is no command of a viewer", f"one of {', '.join(NEEDED_ROLE)}"
        )
    if not operates:
        raise RefusedError("forbidden", f"{action} needs the operator role", "sign in with an operator's token")
    if not 1 <= len(command.id) <= MAX_NAME or len(command.reason) > MAX_REASON:
        raise RefusedError("invalid", f"a command has an id of 1 to {MAX_NAME} characters, a reason of {MAX_REASON}")
    if action in DISTURBING and not command.reason.strip():
        raise RefusedError("invalid", f"{action} needs a reason", "say why; it is kept in the audit")
    do = getattr(getattr(command, action), "do", None)
    if action in _VERBS and do not in _VERBS[action]:
        raise RefusedError(
            "invalid", f"{action} does not know {do!r:.40}", f"one of {', '.join(sorted(_VERBS[action]))}"
        )
    if action in ("generation", "compare"):
        document = command.generation.command if action == "generation" else command.compare.generation
        asked = _check_generation(document)
        if isinstance(asked, GenerationRequest) and asked.interventions and not command.reason.strip():
            raise RefusedError("invalid", "interventions need a reason", "say why; it is kept in the audit")
    return action


def _check_generation(text: str) -> Command:
    """What depends on the model, the ranks say in an event."""
    try:
        command = command_from_json(text)
    except UsageError as error:
        raise RefusedError("invalid", str(error)) from error
    name = command.request if isinstance(command, Control) else command.id
    if not 1 <= len(name) <= MAX_NAME:
        raise RefusedError("invalid", f"a generation has an id of 1 to {MAX_NAME} characters, a control its request")
    return command


def able(action: str, producers: Iterable[Producer]) -> list[Producer]:
    """Whom it goes to. Raises RefusedError when nobody can do it."""
    role = NEEDED_ROLE[action]
    found = [producer for producer in producers if role in producer.roles]
    if not found:
        raise RefusedError("no_producer", f"no rank that is connected can {role}", "start the run with --scope")
    return found
