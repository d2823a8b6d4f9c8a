"""The Python client over a model on two stages of two tensor ranks: what it shows, patches and measures is what a
forward pass written by hand computes in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import megatronapp.scope as client
from megatronapp.core.errors import MegatronAppError, UsageError
from megatronapp.core.generation import GenerationRequest
from megatronapp.core.scope.captures import Floats
from megatronapp.scope import Model, mean_ablation, patch, steer, steer_between, zero_ablation
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from tests.integration.gateway.conftest import OPERATOR, VIEWER, Served
from tests.integration.gateway.scope.patients import (
    RUN,
    TOLERANCE,
    Patient,
    Values,
    assert_close,
    at,
    batch_first,
    patient_on,
)
from tests.integration.trainer.generate.models import LLAMA, trained
from tests.support.plain_forward import Change, Shape
from tests.support.saes import Tensors, features_of, random_weights, written

LAYOUTS = [
    pytest.param("--tensor-model-parallel-size 2", 2, marks=pytest.mark.long),
    pytest.param("--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2", 4, marks=pytest.mark.exhaustive),
]
LAYERS = 4
SAES: dict[str, tuple[Tensors, str, dict[str, Any]]] = {
    "middle": (random_weights(32, 80, threshold=True), "blocks.1.hook_resid_mid", {"architecture": "jumprelu"}),
    "end": (random_weights(32, 96, seed=1), "blocks.3.hook_resid_post", {"architecture": "topk", "k": 5}),
}
CLEAN, CORRUPTED, ANSWER = "He said", "We died", "s"


@pytest.fixture
async def patient(
    scope: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, ranks: int
) -> AsyncIterator[Patient]:
    checkpoint, shape = tmp_path / "checkpoint", Shape(heads=4, groups=2, gated=True)
    await asyncio.to_thread(trained, checkpoint, LLAMA)
    for name, (weights, hook, config) in SAES.items():
        written(tmp_path / "saes" / name, weights, hook, **config)
    layout = f"{layout} --scope-sae-dir {tmp_path / 'saes'}"
    async with patient_on(ranks, layout, checkpoint, shape, scope, tmp_path, monkeypatch) as patient:
        yield patient


@pytest.mark.parametrize(("layout", "ranks"), LAYOUTS)
async def test_values_and_interventions_are_those_of_one_process(patient: Patient, tmp_path: Path) -> None:
    """One launch for all, as a launch is what takes time."""
    for check in (
        _values_have_the_names_of_transformer_lens,
        _features_of_saes_are_those_of_numpy,
        _interventions_do_what_they_say,
        _a_trace_patches_each_cell,
        _attributions_sum_to_the_logit,
        _gradient_times_input_is_what_a_small_change_shows,
        _with_and_without_is_compared,
        _sets_of_prompts_give_a_steering_vector,
        _what_cannot_be_is_refused,
    ):
        await asyncio.to_thread(check, patient)
    await asyncio.to_thread(_a_cache_is_saved_and_loaded, patient, tmp_path / "cache.npz")
    await _experiments_over_http_come_to_the_same(patient)


def _values_have_the_names_of_transformer_lens(patient: Patient) -> None:
    cache = patient.model.run_with_cache(CLEAN, patient.model.hook_points)

    plain = patient.plain(_ids(CLEAN))
    assert cache.tokens == [list(CLEAN.encode())]
    for hook, site in {
        "hook_resid_pre": "resid_pre",
        "attn.hook_q": "attn.q_pre",
        "attn.hook_rot_k": "attn.k",
        "attn.hook_v": "attn.v",
        "attn.hook_pattern": "attn.probs",
        "attn.hook_z": "attn.context",
        "attn.hook_result": "attn.result",
        "mlp.hook_pre": "mlp.gate",
        "mlp.hook_post": "mlp.act",
        "hook_resid_post": "resid_post",
    }.items():
        for layer in range(LAYERS):
            assert_close(cache[f"blocks.{layer}.{hook}"], batch_first(site, plain[site, layer]))
    vocabulary = cache["logits"].shape[-1]
    assert_close(cache["logits"], batch_first("logits", plain["logits", None])[..., :vocabulary])
    assert np.isneginf(cache["blocks.0.attn.hook_attn_scores"][0, 0, 0, 1])
    assert len(cache) == len(patient.model.hook_points)


def _features_of_saes_are_those_of_numpy(patient: Patient) -> None:
    plain = patient.plain(_ids(CLEAN))
    middle, end = batch_first("resid_mid", plain["resid_mid", 1]), batch_first("resid_post", plain["resid_post", 3])
    changes = [zero_ablation("mlp.out", layers="3"), steer("resid_mid", np.ones(32), 2.0, layers="1")]

    cache = patient.model.run_with_cache(CLEAN, ["blocks.*.sae.*"])
    disturbed = patient.model.run_with_cache(
        CLEAN, ["blocks.*.sae.*", "hook_resid_mid", "hook_resid_post"], interventions=changes
    )

    assert_close(cache["blocks.1.sae.middle"], features_of(middle, SAES["middle"][0]))
    assert_close(cache["blocks.3.sae.end"], features_of(end, SAES["end"][0], k=5))
    other_middle, other_end = disturbed["blocks.1.hook_resid_mid"], disturbed["blocks.3.hook_resid_post"]
    assert_close(disturbed["blocks.1.sae.middle"], features_of(other_middle, SAES["middle"][0]))
    assert_close(disturbed["blocks.3.sae.end"], features_of(other_end, SAES["end"][0], k=5))
    assert np.abs(other_middle - middle).max() > 1


def _interventions_do_what_they_say(patient: Patient) -> None:
    """Each on its own row: what is asked for one row stays there."""
    model, other = patient.model, patient.plain(_ids(CORRUPTED))
    kept = ("layers[*].resid_post", "layers[1].attn.context", "layers[*].mlp.out", "layers[2].attn.k")
    for name, text in (("corrupted", CORRUPTED), ("clean", CLEAN)):
        model.generate(text, 1, id=name, keep=kept)
    vector = np.linspace(-1, 1, 32)
    clean = patient.plain(_ids(CLEAN))
    spread = (clean["resid_post", 0] - other["resid_post", 0]).mean((0, 1))
    mean = torch.from_numpy(other["mlp.out", 3].mean((0, 1)))
    cases = [
        (patch("resid_post", "corrupted", layers="1", tokens="3"), _replaced("resid_post", 1, 3, other)),
        (
            patch("resid_post", "corrupted", layers="1", tokens="4,2", source_tokens="1,5"),
            at("resid_post", 1, lambda x: _moved(x, _tensor(other["resid_post", 1]), {4: 1, 2: 5})),
        ),
        (patch("attn.context", "corrupted", layers="1", heads="2"), _head("attn.context", 1, 2, other)),
        (patch("attn.k", "corrupted", layers="2", heads="1"), _head("attn.k", 2, 1, other)),
        (zero_ablation("attn.context", layers="2", heads="3"), _head("attn.context", 2, 3, None)),
        (mean_ablation("mlp.out", "corrupted", layers="3"), at("mlp.out", 3, lambda x: x * 0 + mean)),
        (steer("resid_post", vector, 2.0, layers="0"), at("resid_post", 0, lambda x: x + 2 * _tensor(vector))),
        (
            steer_between("resid_post", "clean", "corrupted", 3.0, layers="0"),
            at("resid_post", 0, lambda x: x + 3 * _tensor(spread)),
        ),
    ]
    changes = [replace(each, rows=str(row)) for row, (each, _) in enumerate(cases)]

    cache = model.run_with_cache([CLEAN] * (len(cases) + 1), ["logits"], interventions=changes)

    expected = [patient.plain(_ids(CLEAN), change)["logits", None][:, 0] for _, change in cases]
    vocabulary = cache["logits"].shape[-1]
    for row, logits in enumerate(expected):
        assert_close(cache["logits"][row], logits[:, :vocabulary])
        assert np.abs(logits - clean["logits", None][:, 0]).max() > 100 * TOLERANCE * np.abs(logits).max(), changes[row]
    assert_close(cache["logits"][-1], clean["logits", None][:, 0, :vocabulary])


def _a_trace_patches_each_cell(patient: Patient) -> None:
    trace = patient.model.causal_trace(CLEAN, CORRUPTED, ANSWER)

    clean = patient.plain(_ids(CLEAN))
    for layer, token in ((0, 0), (2, 3), (3, 6)):
        logits = patient.plain(_ids(CORRUPTED), _replaced("resid_post", layer, token, clean))["logits", None][-1, 0]
        logits = logits[: patient.model.description.model.vocabulary]
        expected = torch.from_numpy(logits).double().log_softmax(-1)[ord(ANSWER)]
        assert trace.patched[layer, token] == pytest.approx(float(expected), rel=TOLERANCE)
    assert trace.patched.shape == (LAYERS, len(CLEAN))
    assert trace.patched[-1, -1] == pytest.approx(trace.clean, rel=TOLERANCE)  # the last layer's last token is all


def _attributions_sum_to_the_logit(patient: Patient) -> None:
    found = patient.model.attribution(CLEAN, ord("a"), against=ord("b"))

    logits = patient.plain(_ids(CLEAN))["logits", None][-1, 0]
    assert found.heads.shape == (LAYERS, 4)
    rounding = TOLERANCE * float(np.abs(logits).max())
    assert found.total == pytest.approx(float(logits[ord("a")] - logits[ord("b")]), abs=rounding)
    assert found.embed + found.heads.sum() + found.mlps.sum() == pytest.approx(found.total, abs=1e-5)


def _gradient_times_input_is_what_a_small_change_shows(patient: Patient) -> None:
    """An embedding a little longer and a little shorter: central differences."""
    model, part = patient.model, 0.02
    found = model.gradient_times_input(CLEAN, ANSWER)

    tokens = range(len(CLEAN))
    scales = [
        client.Intervention(
            site="embed", kind="scale", coefficient=1 + sign * part, tokens=str(at), rows=str(2 * at + place)
        )
        for at in tokens
        for place, sign in enumerate((1, -1))
    ]
    cache = model.run_with_cache([CLEAN] * len(scales), ["logits"], interventions=scales)
    scores = torch.from_numpy(cache["logits"][:, -1]).double().log_softmax(-1)[:, ord(ANSWER)].numpy()
    expected = (scores[::2] - scores[1::2]) / (2 * part)
    assert found.values == pytest.approx(expected, abs=0.02 * np.abs(expected).max())
    assert found.ids == _ids(CLEAN)


def _with_and_without_is_compared(patient: Patient) -> None:
    model, change = patient.model, zero_ablation("mlp.out", layers="2")
    same = model.compare(CLEAN, [replace(change, off=True)], max_new_tokens=4)
    forced = model.compare(CLEAN, [change], max_new_tokens=4)
    free = model.compare(CLEAN, [change], max_new_tokens=4, free=True)

    assert np.abs(same.kl).max() < 1e-9
    assert same.first_different_position is None
    assert same.clean_text == same.other_text == forced.clean_text
    for found in (forced, free):
        assert (found.relative_l2[:2] < TOLERANCE).all()  # before the change
        assert (found.relative_l2[2:] > 1e-3).all()
        assert (found.kl > 0).all()
    taken = client.Intervention(site="resid_post", kind="patch", layers="1")
    itself, other = (model.compare(CLEAN, [taken], max_new_tokens=1, source=each) for each in (CLEAN, CORRUPTED))
    assert np.abs(itself.kl).max() < 1e-9
    assert (other.kl > 1e-6).all()
    points = model.sweep(CLEAN, client.Intervention(site="mlp.out", kind="noise1"), [0.1, 1.0], seeds=2)
    assert 0 < points[0].mean < points[1].mean
    assert len(set(points[0].kl)) == 2


def _sets_of_prompts_give_a_steering_vector(patient: Patient) -> None:
    found = patient.model.steering_vector(["good", "fine one"], ["bad"], "resid_post", 1)

    last = [patient.plain(_ids(text))["resid_post", 1][-1, 0] for text in ("good", "fine one", "bad")]
    assert_close(found, (last[0] + last[1]) / 2 - last[2])


def _what_cannot_be_is_refused(patient: Patient) -> None:
    model = patient.model
    kept = GenerationRequest(prompts=(CLEAN,), id="one", keep=("layers[0].resid_post",), max_new_tokens=1)
    list(model.stream(kept))
    for change, word in (
        (patch("resid_post", "nobody"), "no generation 'nobody' has kept"),
        (patch("resid_post", "one"), r"has not kept layers\[1\]"),
        (steer("resid_post", [1.0, 2.0]), "32 channels"),
        (patch("nowhere", "one"), "no site of that name"),
        (mean_ablation("resid_post", ""), "needs the id"),
    ):
        with pytest.raises(UsageError, match=word):
            model.generate(CLEAN, 1, interventions=[change])
    with pytest.raises(UsageError, match="keep: "):
        model.generate(CLEAN, 1, keep=("layers[",))
    with pytest.raises(UsageError, match="no hook point 'hook_nothing'"):
        model.run_with_cache(CLEAN, ["hook_nothing"])
    for reason, token, word in (("", OPERATOR, "need a reason"), ("a test", VIEWER, "operator")):
        with pytest.raises(MegatronAppError, match=word):
            Model(patient.served.url, token, RUN, reason=reason).generate(
                CLEAN, 1, interventions=[zero_ablation("mlp.out")]
            )
    untouched = model.run_with_cache(CLEAN, ["logits"])["logits"]  # and nothing has stayed
    assert_close(
        untouched, batch_first("logits", patient.plain(_ids(CLEAN))["logits", None])[..., : untouched.shape[-1]]
    )


def _a_cache_is_saved_and_loaded(patient: Patient, path: Path) -> None:
    cache = patient.model.run_with_cache(CLEAN, ["hook_resid_post"])
    cache.save(path)
    loaded = client.load_npz(path)

    assert loaded.tokens == cache.tokens
    assert loaded.keys() == cache.keys()
    assert all(np.array_equal(loaded[name], cache[name]) for name in cache)


async def _experiments_over_http_come_to_the_same(patient: Patient) -> None:
    change = {"site": "mlp.out", "kind": "zero", "layers": "2"}
    bodies: dict[str, dict[str, Any]] = {
        "surprisal": {"prompts": [CLEAN]},
        "causal-trace": {"clean": CLEAN, "corrupted": _ids(CORRUPTED), "answer": ANSWER, "layers": [1, 2]},
        "comparison": {"prompt": CLEAN, "interventions": [change], "max_new_tokens": 4, "reason": "a test"},
        "sweep": {"prompt": CLEAN, "intervention": change, "coefficients": [0.0], "reason": "a test"},
        "attribution": {"prompt": CLEAN, "answer": "a", "against": ord("b")},
        "input-attribution": {"prompt": CLEAN, "answer": ANSWER, "against": "t"},
    }
    answers: dict[str, Any] = {}
    async with patient.served.client(OPERATOR) as http:
        for name, body in bodies.items():
            answer = await http.post(f"/api/v1/scope/runs/{RUN}/{name}", json=body, timeout=60)
            assert answer.status_code == 200, answer.text
            answers[name] = answer.json()
        [listed] = (await http.get("/api/v1/scope/models")).json()
        unsaid = await http.post(f"/api/v1/scope/runs/{RUN}/comparison", json={**bodies["comparison"], "reason": " "})
        unfit = await http.post(f"/api/v1/scope/runs/{RUN}/attribution", json={"prompt": CLEAN, "answer": "two"})
        nobody = await http.post("/api/v1/scope/runs/none/surprisal", json=bodies["surprisal"])
        audit = (await http.get(f"/api/v1/scope/audit?run={RUN}")).json()
    async with patient.served.client(VIEWER) as http:
        forbidden = await http.post(f"/api/v1/scope/runs/{RUN}/surprisal", json=bodies["surprisal"])

    assert [unsaid.status_code, unfit.status_code, nobody.status_code, forbidden.status_code] == [422, 422, 404, 403]
    assert (listed["job"], listed["layers"], listed["ranks"]) == ("team/served", LAYERS, len(patient.model.ranks))
    assert any(entry["reason"] == "a test" and "zero at layers[2].mlp.out" in entry["detail"] for entry in audit)
    model = patient.model
    [surprisal] = await asyncio.to_thread(model.surprisal, CLEAN)
    trace = await asyncio.to_thread(model.causal_trace, CLEAN, CORRUPTED, ANSWER, layers=[1, 2])
    attribution = await asyncio.to_thread(model.attribution, CLEAN, ord("a"), ord("b"))
    gradients = await asyncio.to_thread(model.gradient_times_input, CLEAN, ANSWER, "t")
    assert answers["input-attribution"]["values"] == pytest.approx(gradients.values, abs=TOLERANCE)
    assert answers["input-attribution"]["target"] == pytest.approx(gradients.target, rel=TOLERANCE)
    assert answers["surprisal"][0]["nats"][1:] == pytest.approx(surprisal.nats[1:], rel=TOLERANCE)
    assert np.array(answers["causal-trace"]["patched"]) == pytest.approx(trace.patched, rel=TOLERANCE)
    assert np.array(answers["attribution"]["heads"]) == pytest.approx(attribution.heads, abs=TOLERANCE)
    assert answers["comparison"]["kl"] == pytest.approx(_kl_without_layer(patient), rel=1e-3)
    assert answers["sweep"][0]["mean"] > 0


def _kl_without_layer(patient: Patient) -> list[float]:
    """Of the prompt's tokens and of three that the clean model adds."""
    ids, vocabulary = _ids(CLEAN), patient.model.description.model.vocabulary
    for _ in range(3):
        ids.append(int(patient.plain(ids)["logits", None][-1, 0, :vocabulary].argmax()))
    changes = [None, at("mlp.out", 2, torch.zeros_like)]
    both = [patient.plain(ids, change)["logits", None][:, 0, :vocabulary] for change in changes]
    clean, other = (torch.from_numpy(logits).double().log_softmax(-1) for logits in both)
    return [float(each) for each in (clean.exp() * (clean - other)).sum(-1)]


def _ids(text: str) -> list[int]:
    return list(text.encode())


# ---- what a plain forward pass is changed by


def _replaced(site: str, layer: int, token: int, source: Values) -> Change:
    def change(value: torch.Tensor) -> torch.Tensor:
        value = value.clone()
        value[token] = torch.from_numpy(source[site, layer])[token]
        return value

    return at(site, layer, change)


def _moved(value: torch.Tensor, source: torch.Tensor, tokens: dict[int, int]) -> torch.Tensor:
    value = value.clone()
    for here, there in tokens.items():
        value[here] = source[there]
    return value


def _head(site: str, layer: int, head: int, source: Values | None) -> Change:
    """None: zeros."""

    def change(value: torch.Tensor) -> torch.Tensor:
        value = value.clone()
        value[:, :, head] = 0.0 if source is None else torch.from_numpy(source[site, layer])[:, :, head]
        return value

    return at(site, layer, change)


def _tensor(values: Floats) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)
