"""`scope …`: MegaScope's experiments on a model that is served, from a terminal."""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from megatronapp.cli import local
from megatronapp.cli.extras import needs
from megatronapp.cli.folders import data_folder
from megatronapp.cli.kept_token import OPERATOR, read_kept
from megatronapp.core.errors import UsageError

if TYPE_CHECKING:
    from megatronapp.scope import Intervention, Model

scope_app = typer.Typer(help="Look into a model that is served, and disturb it (MegaScope).", no_args_is_help=True)
SHADES = " ·░▒▓█"
Url = Annotated[str, typer.Option(help="the gateway; default: that of the platform on this machine")]
Token = Annotated[str, typer.Option(envvar="MEGATRONAPP_OPERATOR_TOKEN", help="an operator's; default: this machine's")]
Run = Annotated[str, typer.Option(help="run or job, where several are served")]
Json = Annotated[bool, typer.Option("--json", help="print the result as JSON")]


@scope_app.callback()
def _scope() -> None:
    """Look into a model that is served, and disturb it (MegaScope)."""


@scope_app.command("cache")
def cache(
    prompt: Annotated[str, typer.Argument(help="what the model is given")],
    output: Annotated[Path, typer.Option("-o", "--output", help="NPZ file to write")],
    names: Annotated[list[str], typer.Option("--name", help="hook points, as 'blocks.*.attn.hook_q'; may be repeated")],
    url: Url = "",
    token: Token = "",
    run: Run = "",
) -> None:
    """Write values of one forward pass as NPZ, by TransformerLens' names."""
    found = _model(url, token, run).run_with_cache(prompt, names)
    found.save(output)
    print(f"{output}: {len(found)} arrays of {len(found.tokens[0])} tokens")


@scope_app.command("surprisal")
def surprisal(
    prompt: Annotated[str, typer.Argument(help="the text")],
    as_json: Json = False,
    url: Url = "",
    token: Token = "",
    run: Run = "",
) -> None:
    """How little the model expects each token of a text, in nats."""
    [found] = _model(url, token, run).surprisal(prompt)
    if as_json:
        print(_json(found))
        return
    for text, nats in zip(found.texts, found.nats, strict=True):
        print(f"{'' if nats is None else f'{nats:.3f}':>8}  {text!r}")


@scope_app.command("trace")
def trace(
    clean: Annotated[str, typer.Argument(help="a prompt that leads to the answer")],
    corrupted: Annotated[str, typer.Argument(help="one of as many tokens that does not")],
    answer: Annotated[str, typer.Argument(help="what the clean prompt is followed by")],
    site: Annotated[str, typer.Option(help="what is patched")] = "resid_post",
    by_head: Annotated[bool, typer.Option(help="heads in place of tokens; give a site that has heads")] = False,
    as_json: Json = False,
    url: Url = "",
    token: Token = "",
    run: Run = "",
) -> None:
    """Which layer's values at which token bring the answer back into the corrupted prompt."""
    found = _model(url, token, run).causal_trace(clean, corrupted, answer, site=site, by_head=by_head)
    if as_json:
        print(_json(found))
        return
    print(f"log-probability of the answer: {found.clean:.3f} clean, {found.corrupted:.3f} corrupted")
    print("how much of the difference a cell brings back (layers down, ' ' 0, '█' 1):")
    for layer, row in zip(found.layers, found.effect, strict=True):
        print(f"{layer:>4} |{''.join(_shade(value) for value in row)}|")
    print(f"     {'heads' if by_head else ' '.join(repr(text) for text in found.tokens)}")


@scope_app.command("compare")
def compare(
    prompt: Annotated[str, typer.Argument(help="what the model is given")],
    changes: Annotated[
        list[str], typer.Option("--intervention", help="'kind=zero site=mlp.out layers=3'; may be repeated")
    ],
    source: Annotated[str, typer.Option(help="prompt whose values patch, mean and steer take")] = "",
    baseline: Annotated[str, typer.Option(help="of steer: prompt whose mean is taken away")] = "",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="tokens that it adds")] = 16,
    free: Annotated[bool, typer.Option(help="let the changed model go its own way")] = False,
    reason: Annotated[str, typer.Option(help="why, for the audit")] = "megatronapp scope compare",
    as_json: Json = False,
    url: Url = "",
    token: Token = "",
    run: Run = "",
) -> None:
    """What interventions change: the text, and how far predictions and layers are apart."""
    parsed = [intervention(text) for text in changes]
    model = _model(url, token, run)
    model.reason = reason
    found = model.compare(
        prompt,
        parsed,
        free=free,
        max_new_tokens=max_new_tokens,
        source=source or None,
        baseline=baseline or None,
    )
    if as_json:
        print(_json(found))
        return
    print(f"without: {found.clean_text!r}\nwith:    {found.other_text!r}")
    print(f"first token that differs: {found.first_different_position}; mean KL {found.kl.mean():.4g} nats")
    for layer, row in zip(found.layers, found.relative_l2, strict=True):
        print(f"{layer:>4} |{''.join(_shade(value) for value in row)}| relative L2 {row.mean():.3g}")


@scope_app.command("sweep")
def sweep(
    prompt: Annotated[str, typer.Argument(help="what the model is given")],
    change: Annotated[str, typer.Option("--intervention", help="'kind=noise1 site=mlp.out layers=3'")],
    coefficients: Annotated[str, typer.Option(help="its strengths, as 0.1,0.3,1")],
    seeds: Annotated[int, typer.Option(min=1, help="draws of its noise, each strength")] = 3,
    reason: Annotated[str, typer.Option(help="why, for the audit")] = "megatronapp scope sweep",
    as_json: Json = False,
    url: Url = "",
    token: Token = "",
    run: Run = "",
) -> None:
    """How far predictions go from the clean ones as an intervention grows: mean KL a token, with a 95 % interval."""
    parsed, strengths = intervention(change), numbers(coefficients)
    model = _model(url, token, run)
    model.reason = reason
    found = model.sweep(prompt, parsed, strengths, seeds)
    if as_json:
        print(_json(found))
        return
    print(f"{'coefficient':>12} {'KL, nats':>12} {'± 95 %':>10}")
    for point in found:
        print(f"{point.coefficient:>12g} {point.mean:>12.4g} {point.half_width:>10.2g}")


@scope_app.command("attribute")
def attribute(
    prompt: Annotated[str, typer.Argument(help="what the model is given")],
    answer: Annotated[str, typer.Argument(help="a text of one token")],
    against: Annotated[str, typer.Option(help="attribute the lead over this one")] = "",
    as_json: Json = False,
    url: Url = "",
    token: Token = "",
    run: Run = "",
) -> None:
    """What each head and MLP adds to an answer's logit (direct logit attribution)."""
    model = _model(url, token, run)
    found = model.attribution(prompt, answer, against or None)
    if as_json:
        print(_json(found))
        return
    parts = [(float(value), f"L{layer} MLP") for layer, value in enumerate(found.mlps)]
    for layer, row in enumerate(found.heads):
        parts += [(float(value), f"L{layer} H{head}") for head, value in enumerate(row)]
    print(f"logit {found.total:.3f}, of it the embedding's {found.embed:.3f}; the parts that add or take most:")
    for value, name in sorted(parts, key=lambda part: -abs(part[0]))[:12]:
        print(f"{value:>9.3f}  {name}")


@scope_app.command("gradients")
def gradients(
    prompt: Annotated[str, typer.Argument(help="what the model is given")],
    answer: Annotated[str, typer.Argument(help="what is to follow it")],
    against: Annotated[str, typer.Option(help="attribute the lead over this one")] = "",
    as_json: Json = False,
    url: Url = "",
    token: Token = "",
    run: Run = "",
) -> None:
    """How an answer's log-probability follows each token of the prompt (gradient × input)."""
    found = _model(url, token, run).gradient_times_input(prompt, answer, against or None)
    if as_json:
        print(_json(found))
        return
    print(f"{'lead' if against else 'log-probability'} of the answer: {found.target:.3f} nats; gradient × input:")
    for text, value in zip(found.texts, found.values, strict=True):
        print(f"{value:>9.3f}  {text!r}")


def intervention(text: str) -> Intervention:
    """Of `kind=zero site=mlp.out layers=3`. Raises UsageError."""
    with needs("scope"):
        from megatronapp.scope import Intervention
    fields: dict[str, Any] = {}
    for part in text.split():
        name, found, value = part.partition("=")
        if not found or name not in Intervention.__dataclass_fields__:
            known = ", ".join(Intervention.__dataclass_fields__)
            raise UsageError(f"--intervention {part!r}: write name=value, of {known}")
        fields[name] = _value(name, value, Intervention.__dataclass_fields__[name].default)
    return Intervention(**fields)


def numbers(text: str) -> list[float]:
    """Of `0.1,0.3,1`. Raises UsageError."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(f"--coefficients {text!r}: write numbers, such as 0.1,0.3,1") from error


def _value(name: str, text: str, default: Any) -> Any:
    try:
        if isinstance(default, float):
            return float(text)
    except ValueError as error:
        raise UsageError(f"--intervention {name}={text}: write a number") from error
    if isinstance(default, tuple):
        raise UsageError(f"--intervention {name}: give vectors from Python")
    return text == "true" if isinstance(default, bool) else text


def _model(url: str, token: str, run: str) -> Model:
    with needs("scope"):
        from megatronapp.scope import connect
    if not url:
        running = local.find(data_folder())
        if running is None or not running.page:
            raise UsageError("no platform runs on this machine: start megatronapp serve, or give --url and --token")
        kept = read_kept(data_folder(), OPERATOR)
        url, token = running.page, token or (kept.get_secret_value() if kept else "")
    return connect(url, token, run)


def _json(value: object) -> str:
    def plain(found: Any) -> Any:
        if is_dataclass(found) and not isinstance(found, type):
            return asdict(found)
        return found.tolist() if isinstance(found, np.ndarray) else str(found)

    return json.dumps(value, default=plain)


def _shade(value: float) -> str:
    return "?" if not np.isfinite(value) else SHADES[int(np.clip(value, 0, 0.999) * len(SHADES))]
