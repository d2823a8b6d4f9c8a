"""While text is generated with a cache each site shows, row by row, what a forward pass over the whole text has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from megatronapp.core.generation import GenerationRequest, Sampling
from megatronapp.core.scope.layout import piece_index, pieces
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.config import ParallelConfig
from megatronapp.trainer.generate.arguments import Source
from tests.integration.trainer.generate.models import LLAMA, MOE, rows, trained
from tests.support.forked import run_forked
from tests.support.plain_forward import Shape, plain_forward

PP2 = {"pipeline_model_parallel_size": 2}
TP2, VPP2 = {"tensor_model_parallel_size": 2}, {**PP2, "num_virtual_stages_per_pipeline_rank": 2}
MODELS = {"gpt": ("", Shape(heads=4, groups=4)), "llama": (LLAMA, Shape(heads=4, groups=2, gated=True))}
TEXTS = ("He said", "Once upon")
"""Of unequal length: one is scored while the other grows."""
REQUEST = GenerationRequest(
    prompts=TEXTS,
    id="grown",
    max_new_tokens=5,
    sampling=Sampling(temperature=0),
    stop_at_end_of_document=False,
    prompt_log_probabilities=True,
)
PLAIN = "plain"
TOLERANCE = 1e-5
"""Of the largest |value|, float32."""
ROWS = ("token", "query")
slower = pytest.mark.long
Floats = npt.NDArray[np.float32]
Where = tuple[str, str, int | None]
"""Request, site, layer."""


@dataclass
class Captured:
    """By a rank."""

    texts: list[list[int]] = field(default_factory=list)
    parts: dict[Where, list[tuple[Floats, tuple[npt.NDArray[np.int64], ...], tuple[str, ...]]]] = field(
        default_factory=dict
    )
    weights: dict[str, Floats] = field(default_factory=dict)
    passes: int = 0
    epsilon: float = 0.0


def generated(folder: Path, layout: dict[str, int]) -> Captured:
    """For a rank: text with a cache, then each row's whole text at once."""
    from megatronapp.trainer.generate.loaded import loaded
    from megatronapp.trainer.plugins.scope.position import Position
    from megatronapp.trainer.plugins.scope.shards import Shard
    from megatronapp.trainer.plugins.scope.taps import Capture, Demand, Taps
    from megatronapp.trainer.plugins.scope.weights import weights

    seen, position = Captured(), Position()

    def see(capture: Capture) -> None:
        if capture.key is not None:
            return
        spot, dims = capture.spot, capture.spot.place.dims
        axes = {axis.name: axis for axis in capture.shard.axis_sizes(spot.site, dims, capture.value.shape)}
        names = tuple(name for dim in dims for name in dim)
        index = tuple(pieces(axes[name])[piece_index(axes[name])] for name in names)
        index = tuple(at + capture.first_token * (name in ROWS) for name, at in zip(names, index, strict=True))
        value = capture.value.float().numpy().reshape([len(at) for at in index]).copy()
        seen.parts.setdefault((capture.request or "", spot.site, spot.layer), []).append((value, index, names))

    class Observer:
        def request_begin(self, request: GenerationRequest, rows: int, positions: int) -> None: ...

        def request_end(self, request: str) -> None: ...

        def pass_begin(self, request: str, start: int, end: int, rows: int) -> None:
            seen.passes += 1
            position.generate(request, start, end)
            position.active = True

        def pass_end(self) -> None:
            position.train()

    with loaded(Source(folder=folder, parallel=ParallelConfig(**layout))) as generator:
        chunks = generator.engine.stages.chunks
        config, vocabulary = chunks[0].config, int(chunks[0].vocab_size)
        shard = Shard.of(
            chunks,
            config,
            vocabulary=vocabulary,
            micro_batch_size=1,
            sequence_length=64,
            ids=generator.limits.vocabulary,
        )
        taps = Taps(chunks, shard, position)
        taps.set([(spot, Demand(readers=[see])) for spot in taps.spots])
        generator.observe(Observer())
        seen.texts = rows(REQUEST, list(generator.generate(REQUEST)))
        seen.weights = {each.name: each.parameter.detach().float().numpy().copy() for each in weights(chunks)}
        seen.epsilon = config.layernorm_epsilon
        for row, ids in enumerate(seen.texts):
            position.generate(f"{PLAIN} {row}", 0, len(ids))
            position.active = True
            generator.engine.stages.forward(torch.tensor([ids]), None)
            position.train()
        taps.clear()
    return seen


@pytest.fixture(scope="module")
def seen_by(tmp_path_factory: pytest.TempPathFactory) -> object:
    folder_of = cache(lambda flags: trained(tmp_path_factory.mktemp("checkpoint"), flags))
    return lambda flags, ranks, layout: run_forked(ranks, generated, folder_of(flags), layout)


def whole(ranks: Sequence[Captured], where: Where) -> Floats:
    """Rows of the batch first; NaN where nothing was shown."""
    parts = [part for rank in ranks for part in rank.parts.get(where, [])]
    assert parts, f"nobody has {where}"
    names = parts[0][2]
    found = np.full([1 + max(int(index[axis].max()) for _, index, _ in parts) for axis in range(len(names))], np.nan)
    for value, index, _ in parts:
        found[np.ix_(*index)] = value
    return np.moveaxis(found, names.index("batch"), 0).astype(np.float32)


def assert_alike(site: str, shown: Floats, expected: Floats, where: object) -> None:
    """Of one row, as far as it was computed."""
    assert shown.shape == expected.shape, where
    if site in ("attn.scores", "attn.probs"):  # before their mask scores of later keys have no meaning
        past = np.tril(np.ones(expected.shape[-2:], bool))
        shown, expected = shown[..., past], expected[..., past]
    assert np.abs(shown - expected).max() <= TOLERANCE * np.abs(expected).max(), where


def computed(site: str, values: Floats, count: int) -> Floats:
    """The first `count` rows, and of attention columns: the last token that is drawn is in no pass."""
    return values[:, :count, :count] if site in ("attn.scores", "attn.probs") else values[:count]


LAYOUTS = [
    pytest.param("gpt", 1, {}, marks=slower),
    pytest.param("gpt", 2, TP2, marks=slower),
    ("llama", 2, VPP2),
    pytest.param("llama", 2, TP2, marks=slower),
]


@pytest.mark.parametrize(("model", "ranks", "layout"), LAYOUTS)
def test_cached_rows_are_those_of_a_forward_pass_by_hand(
    model: str, ranks: int, layout: dict[str, int], seen_by: object
) -> None:
    flags, shape = MODELS[model]
    found: list[Captured] = seen_by(flags, ranks, layout)  # type: ignore[operator]
    texts = found[0].texts
    weights = _alone(flags, seen_by).weights

    sites = {(site, layer) for each in found for request, site, layer in each.parts if request == REQUEST.id}
    assert found[0].passes > max(map(len, TEXTS)) - min(map(len, TEXTS))  # not all at once
    for row, ids in enumerate(texts):
        plain = plain_forward(np.array([ids]), weights, shape, layers=4)
        assert sites >= {(site, layer) for site, layer in plain if site != "attn.result"}
        for (site, layer), value in plain.items():
            if site == "attn.result":  # is computed where it is asked for: gateway/scope/test_with_client.py
                continue
            expected = value[0] if site in ("attn.scores", "attn.probs") else value[:, 0]
            shown = whole(found, (REQUEST.id, site, layer))[row]
            if site == "logits":
                expected = expected[:, : shown.shape[-1]]
            count = len(ids) - 1
            given = computed(site, shown, count), computed(site, expected, count)
            assert_alike(site, *given, (site, layer, row))


def _alone(flags: str, seen_by: object) -> Captured:
    [alone] = seen_by(flags, 1, {})  # type: ignore[operator]
    return alone  # type: ignore[no-any-return]


@pytest.mark.parametrize(("ranks", "layout"), [pytest.param(1, {}, marks=slower), pytest.param(2, TP2, marks=slower)])
def test_a_router_gives_cached_rows_what_numpy_makes_of_them(
    ranks: int, layout: dict[str, int], seen_by: object
) -> None:
    found: list[Captured] = seen_by(MOE, ranks, layout)  # type: ignore[operator]
    alone = _alone(MOE, seen_by)

    for row, ids in enumerate(found[0].texts):
        count = len(ids) - 1
        for layer in range(4):
            for site in ("router.logits", "router.probs", "router.load", "mlp.out", "resid_post"):
                shown = whole(found, (REQUEST.id, site, layer))[row][:count]
                at_once = whole([alone], (f"{PLAIN} {row}", site, layer))[0][:count]
                assert_alike(site, shown, at_once, (site, layer, row))
            given = whole(found, (REQUEST.id, "resid_mid", layer))[row][:count].astype(np.float64)
            by_numpy = _normed(given, alone, layer) @ alone.weights[f"layers.{layer}.mlp.router.weight"].T
            logits = whole(found, (REQUEST.id, "router.logits", layer))[row][:count]
            assert_alike("router.logits", logits, by_numpy.astype(np.float32), layer)


def _normed(values: npt.NDArray[np.float64], of: Captured, layer: int) -> npt.NDArray[np.float64]:
    scale, offset = (of.weights[f"layers.{layer}.pre_mlp_layernorm.{name}"] for name in ("weight", "bias"))
    centred = values - values.mean(-1, keepdims=True)
    normed: npt.NDArray[np.float64] = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + of.epsilon)
    return normed * scale + offset
