"""A model behind a gateway: text, values, interventions, experiments."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import httpx
import numpy as np

from megatronapp.core import experiments
from megatronapp.core.errors import AuthError, NotFoundError, UnavailableError, UsageError
from megatronapp.core.experiments import Experiment, ModelShape, Outcome, Pass, computed_positions, scoring
from megatronapp.core.generation import Event, GenerationRequest, Prompt, Sampling, Started, Token
from megatronapp.core.generation_rows import Row, take
from megatronapp.core.scope import transformer_lens
from megatronapp.core.scope.captures import Captured, Floats, Place, Unit, Wanted, batches, units
from megatronapp.core.scope.frame import Section
from megatronapp.core.scope.intervention import Intervention
from megatronapp.core.scope.measures import Attribution
from megatronapp.core.scope.quantize import Values
from megatronapp.core.scope.results import of_frame
from megatronapp.core.scope.sites import SAE, Site
from megatronapp.core.scope.token_texts import unpack_texts
from megatronapp.core.scope.wire import sites_from_proto
from megatronapp.scope.cache import Cache
from megatronapp.scope.socket import ANSWER_SECONDS, Socket

QUIET_SECONDS = 2.0
"""When no frame has come for so long after the last token, what is missing is lost."""
TRIES = 4
LIST_SECONDS = 10.0
T = TypeVar("T")
Prompts = Prompt | Sequence[Prompt]


def connect(url: str = "http://127.0.0.1:8080", token: str = "", run: str = "") -> Model:
    """A model of the gateway at `url`: that of `run` (or of the job of this name), or the only one that generates.

    `token`: an operator's, where the gateway wants one (`megatronapp token` prints it). Raises AuthError, NotFoundError
    and UnavailableError.
    """
    return Model(url, token, _found(url, token, run))


@dataclass(frozen=True, slots=True)
class WatchedTokens:
    """A row of a training's microbatch."""

    step: int
    microbatch: int
    ids: list[int]
    """-1: its rank has not sent it."""
    texts: list[str]


class Model:
    """Each method opens a connection of its own: a notebook may stand for hours, and others may take control."""

    def __init__(self, url: str, token: str, run: str, *, reason: str = "from Python") -> None:
        """`reason`: why it is disturbed, for the audit."""
        self.run = run
        self.reason = reason
        self._url, self._token = url, token
        with self._socket() as socket:
            self.description = socket.description

    @property
    def sites(self) -> dict[str, Site]:
        """What can be looked at while it generates, by name."""
        found = sites_from_proto(self.description.sites)
        return {site.name: site for site in sorted(found, key=lambda site: site.generates)}

    @property
    def ranks(self) -> list[int]:
        """That were connected when this model was."""
        return list(self.description.ranks)

    @property
    def layers(self) -> int:
        return int(self.description.model.layers)

    @property
    def shape(self) -> ModelShape:
        model = self.description.model
        return ModelShape(model.layers, model.heads, model.normalization != "RMSNorm", model.norm_epsilon)

    @property
    def hook_points(self) -> list[str]:
        """Names that `run_with_cache` takes."""
        return list(
            transformer_lens.hook_names(self.sites, self.layers, learned_positions=self._learned, saes=self._saes)
        )

    # ---- text

    def stream(self, request: GenerationRequest) -> Iterator[Event]:
        """Events as they come, to the end."""
        asked = replace(request, id=request.id or _new_id())
        with self._socket() as socket:
            yield from socket.generate(asked, self.reason)

    def generate(
        self,
        prompts: Prompts,
        max_new_tokens: int = 32,
        *,
        temperature: float = 0.0,
        interventions: Sequence[Intervention] = (),
        **options: Any,
    ) -> list[Row]:
        """A row a prompt, with text, tokens and their log-probabilities. Temperature 0 takes the likeliest token.
        `options`: other fields of `GenerationRequest`. Raises UsageError for what the model refuses."""
        request = GenerationRequest(
            prompts=_several(prompts),
            max_new_tokens=max_new_tokens,
            sampling=options.pop("sampling", Sampling(temperature=temperature)),
            interventions=tuple(interventions),
            **options,
        )
        return self._rows(request)

    def tokens(self, prompt: Prompt) -> list[Token]:
        """The prompt's; nothing is computed."""
        request = GenerationRequest(id=_new_id(), prompts=(prompt,), max_new_tokens=1, paused=True)
        with self._socket() as socket, closing(socket.generate(request, "")) as events:
            for event in events:
                if isinstance(event, Started):
                    return list(event.rows[0])
        raise UnavailableError("the model has not said what the prompt's tokens are: ask again")

    def watched_tokens(self, row: int = 0) -> WatchedTokens:
        """What a training is given: the next microbatch's row of the batch, with texts. While it is paused the one that
        was looked at last, if any was. Raises UnavailableError where none comes."""
        with self._socket() as socket:
            socket.subscribe(1, f"tokens | batch({row})", "")
            for frame in socket.frames(ANSWER_SECONDS):
                result = of_frame(frame)
                if isinstance(result, Values):
                    texts = unpack_texts(frame.sections.get(Section.TOKEN_TEXTS, b""))
                    ids = [int(token) for token in np.nan_to_num(result.array, nan=-1)]
                    named = [texts.get(token, "") for token in ids]
                    return WatchedTokens(frame.step, frame.microbatch or 0, ids, named)
        raise UnavailableError(f"no step was seen within {ANSWER_SECONDS:g} s: is the training paused?")

    # ---- values

    def run_with_cache(
        self,
        prompts: Prompts,
        names: Sequence[str],
        *,
        interventions: Sequence[Intervention] = (),
        **options: Any,
    ) -> Cache:
        """Values of one forward pass over the prompts, by TransformerLens' names.

        `names`: hook points as `blocks.*.attn.hook_q`; `hook_resid_post` alone means that of all layers; `logits`.
        Float32, [batch, pos, …], in the axes that TransformerLens has, whatever ranks the model is spread over. Prompts
        of several rows have as many tokens each. `options`: other fields of `GenerationRequest`, as `add_bos`.
        """
        chosen = transformer_lens.wanted(
            names, self.sites, self.layers, learned_positions=self._learned, saes=self._saes
        )
        request = scoring(_several(prompts), interventions=tuple(interventions), **options)
        outcome = self.run_pass(Pass(request, tuple(transformer_lens.grouped(chosen.values()))))
        ids = [[token.id for token in row.prompt] for row in outcome.rows]
        if len({len(row) for row in ids}) > 1:
            raise UsageError(f"the prompts have {sorted({len(row) for row in ids})} tokens: give as many each")
        return Cache({name: _filled(place, outcome.values[place]) for name, place in chosen.items()}, ids)

    def run_pass(self, asked: Pass) -> Outcome:
        """A generation, with what is to be shown of it. Raises UsageError for what is refused, UnavailableError where
        values do not come."""
        return self._outcome(asked.request, asked.shown)

    # ---- experiments (megatronapp.core.experiments)

    def experiment(self, asked: Experiment[T]) -> T:
        """Run one to its result."""
        names: dict[str, str] = {}
        try:
            step = next(asked)
            while True:
                request = experiments.addressed(step, _new_id(), names)
                step = asked.send(self._outcome(request, step.shown))
        except StopIteration as done:
            result: T = done.value
            return result

    def surprisal(self, prompts: Prompts) -> list[experiments.Surprisal]:
        return self.experiment(experiments.surprisal(_several(prompts)))

    def causal_trace(self, clean: Prompt, corrupted: Prompt, answer: Prompt, **options: Any) -> experiments.Trace:
        """`options`: site, layers, by_head."""
        return self.experiment(experiments.causal_trace(clean, corrupted, answer, self.shape, **options))

    def compare(self, prompt: Prompt, interventions: Sequence[Intervention], **options: Any) -> experiments.Comparison:
        """With and without; `options`: free, site, max_new_tokens, seed, …"""
        return self.experiment(experiments.compare(prompt, interventions, self.shape, **options))

    def sweep(
        self, prompt: Prompt, intervention: Intervention, coefficients: Sequence[float], seeds: int = 1
    ) -> list[experiments.SweepPoint]:
        return self.experiment(experiments.sweep(prompt, intervention, coefficients, seeds))

    def attribution(self, prompt: Prompt, answer: int | str, against: int | str | None = None) -> Attribution:
        """Direct logit attribution at the prompt's end, of an id or a text of one token, or of its lead over another.
        Raises UsageError for a text of several tokens."""
        one, other = self._one_token(answer), None if against is None else self._one_token(against)
        return self.experiment(experiments.attribution(prompt, one, self.shape, against=other))

    def gradient_times_input(
        self, prompt: Prompt, answer: Prompt, against: Prompt | None = None
    ) -> experiments.InputAttribution:
        """How the log-probability of the answer after the prompt, or its lead over another answer's, follows each token
        of the prompt."""
        return self.experiment(experiments.gradient_times_input(prompt, answer, against=against))

    def steering_vector(self, towards: Sequence[Prompt], away: Sequence[Prompt], site: str, layer: int) -> Floats:
        """Difference of means at the prompts' last tokens, for `steer`."""
        return self.experiment(experiments.mean_difference(towards, away, site, layer))

    # ---- plans, which hold until they are cleared

    def perturb(self, plan: str, interventions: Sequence[Intervention], seed: int = 0, request: str = "") -> None:
        """A plan in place of that of the same name, for whatever runs. Raises UsageError."""
        from megatronapp.v1 import scope_pb2

        asked = [scope_pb2.ScopePerturbation(**_fields(each)) for each in interventions]
        with self._socket() as socket:
            socket.command(
                reason=self.reason,
                perturb=scope_pb2.ScopePerturb(plan=plan, perturbations=asked, seed=seed, request=request),
            )

    def clear(self, plan: str = "") -> None:
        """One plan; without a name all."""
        from megatronapp.v1 import scope_pb2

        with self._socket() as socket:
            socket.command(reason=self.reason, perturb_clear=scope_pb2.ScopePerturbClear(plan=plan))

    # ---- inside

    @property
    def _learned(self) -> bool:
        return bool(self.description.model.position_embedding == "learned_absolute")

    @property
    def _saes(self) -> dict[str, tuple[int, ...]]:
        return {name: site.layers for name, site in self.sites.items() if name.startswith(SAE)}

    def _one_token(self, given: int | str) -> int:
        if isinstance(given, int):
            return given
        tokens = self.tokens(given)
        if len(tokens) != 1:
            raise UsageError(f"{given[:40]!r} is {len(tokens)} tokens: give a text of one, or an id")
        return tokens[0].id

    def _socket(self) -> Socket:
        return Socket(self._url, self._token, self.run)

    def _rows(self, request: GenerationRequest) -> list[Row]:
        rows = [Row() for _ in request.prompts]
        for event in self.stream(request):
            take(rows, event)
        return rows

    def _outcome(self, request: GenerationRequest, shown: Sequence[Wanted]) -> Outcome:
        if not shown:
            return Outcome(self._rows(request), {})
        rows: list[Row] = []
        prompts = tuple(tuple(token.id for token in self.tokens(prompt)) for prompt in request.prompts)
        if not request.add_bos:  # which adds nothing to ids
            request = replace(request, prompts=prompts)
        given = max(map(len, prompts)) + 1 + max((len(each) for each in request.continuations), default=0)
        left = units(shown, self.sites, len(prompts), given + request.max_new_tokens)
        captured = Captured()
        for _ in range(TRIES):
            for batch in batches(left):
                rows = self._captured(request, batch, captured)
            left = captured.missing(left, computed_positions(rows)) if left else []
            if not left:
                return Outcome(rows, captured.values())
        raise UnavailableError(f"values of {left[0].expression} do not come: ask for fewer at a time")

    def _captured(self, request: GenerationRequest, batch: Sequence[Unit], captured: Captured) -> list[Row]:
        request = replace(request, id=request.id if request.keep else _new_id())
        rows = [Row() for _ in request.prompts]
        with self._socket() as socket:
            for number, unit in enumerate(batch, 1):
                captured.subscribed(unit, socket.subscribe(number, unit.expression, request.id))
            for event in socket.generate(request, self.reason):
                take(rows, event)
            for frame in socket.frames(QUIET_SECONDS):
                captured.add(batch[frame.subscription - 1], frame)
                if not captured.missing(batch, computed_positions(rows)):
                    break
        return rows


def _filled(place: Place, values: Floats) -> Floats:
    """Masked cells as TransformerLens has them."""
    if place[0] == "attn.probs":
        return np.nan_to_num(values, nan=0.0)
    return np.where(np.isnan(values), np.float32(-np.inf), values) if place[0] == "attn.scores" else values


def _fields(intervention: Intervention) -> dict[str, Any]:
    return {name: value for name, value in vars(intervention).items() if value not in ("", (), False)}


def _several(prompts: Prompts) -> tuple[Prompt, ...]:
    """One prompt is a text or ids; several are a list of such."""
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        prompts = [prompts if isinstance(prompts, str) else tuple(prompts)]  # type: ignore[arg-type]
    return tuple(each if isinstance(each, str) else tuple(each) for each in prompts)  # type: ignore[arg-type]


def _new_id() -> str:
    return f"python-{secrets.token_hex(6)}"


def _found(url: str, token: str, run: str) -> str:
    """The run of a name, of a job's name, or the only one. Raises NotFoundError, and UsageError for several."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        answer = httpx.get(f"{url.rstrip('/')}/api/v1/scope/models", headers=headers, timeout=LIST_SECONDS)
        if answer.status_code in (401, 403):
            raise AuthError(f"the gateway at {url} refuses this token: `megatronapp token` prints one")
        answer.raise_for_status()
        models = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise UnavailableError(f"no gateway answers at {url}: {error}") from error
    able = [each for each in models if run in (each["run"], each["job"]) or (not run and "generate" in each["roles"])]
    if not able:
        what = f"a run or job {run!r}" if run else "a model that generates"
        raise NotFoundError(f"{url} has not {what}: start one with megatronapp serve, or a run with --scope")
    if len(able) > 1:
        raise UsageError(f"several are served: name one as run, of {', '.join(each['job'] for each in able[:5])}")
    return str(able[0]["run"])
