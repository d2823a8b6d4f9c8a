"""SAEs of a folder: their features are NumPy's, and a file that does not fit is one line."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from megatronapp.core.errors import DataError, MegatronAppError, UsageError
from megatronapp.core.scope.expression import parse
from megatronapp.core.scope.quantize import Values
from megatronapp.core.scope.results import Partial, Top
from megatronapp.core.scope.sites import Coordinates, Model, Rule, standard_sites
from megatronapp.trainer.plugins.scope.derived import reduce_features
from megatronapp.trainer.plugins.scope.saes import CONFIG, WEIGHTS, found_saes, read_sae
from megatronapp.trainer.plugins.scope.shards import Shard, encoded_sites
from megatronapp.trainer.plugins.scope.watch import resolved
from tests.support.saes import features_of, random_weights, written

HOOK = "blocks.1.hook_resid_post"
CHANNELS, FEATURES = 8, 24
ROWS = np.random.default_rng(5).normal(size=(2, 6, CHANNELS)).astype(np.float32)
MODEL = Model(layers=2, hidden=CHANNELS, heads=2, head_channels=4, mlp_channels=16, vocabulary=32, batch=2, tokens=6)


@pytest.mark.parametrize(
    ("config", "threshold", "how"),
    [
        ({}, False, {}),
        ({"apply_b_dec_to_input": False}, False, {"subtracts": False}),
        ({"architecture": "jumprelu"}, True, {}),
        ({"architecture": "topk", "k": 3}, False, {"k": 3}),
        ({"activation_fn_str": "topk", "activation_fn_kwargs": {"k": 3}}, False, {"k": 3}),
    ],
)
def test_features_are_those_of_numpy(
    tmp_path: Path, config: dict[str, Any], threshold: bool, how: dict[str, Any]
) -> None:
    weights = random_weights(CHANNELS, FEATURES, threshold=threshold)
    sae = read_sae(written(tmp_path / "one", weights, HOOK, **config))

    found = sae.encode(torch.from_numpy(ROWS)).numpy()

    np.testing.assert_allclose(found, features_of(ROWS, weights, **how), rtol=1e-4, atol=1e-5)


def test_rows_are_normalized_as_the_file_says(tmp_path: Path) -> None:
    weights = random_weights(CHANNELS, FEATURES)
    rescaled = read_sae(written(tmp_path / "a", weights, HOOK, normalize_activations="constant_norm_rescale"))
    layered = read_sae(written(tmp_path / "b", weights, HOOK, normalize_activations="layer_norm"))

    rescaled_rows = ROWS * np.sqrt(CHANNELS) / np.linalg.norm(ROWS, axis=-1, keepdims=True)
    centred = ROWS - ROWS.mean(-1, keepdims=True)
    layered_rows = centred / (centred.std(-1, keepdims=True, ddof=1) + 1e-5)
    for sae, rows in ((rescaled, rescaled_rows), (layered, layered_rows)):
        found = sae.encode(torch.from_numpy(ROWS)).numpy()
        np.testing.assert_allclose(found, features_of(rows, weights), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("config", [{}, {"architecture": "topk", "k": 4}])
@pytest.mark.parametrize("text", ["", "batch(1)", "last(2) | chan(3)", "chan(2:20:3) | token(1:4)", "batch(0) | abs"])
def test_what_an_expression_takes_first_is_all_that_is_made(tmp_path: Path, text: str, config: dict[str, Any]) -> None:
    weights = random_weights(CHANNELS, FEATURES)
    sae = read_sae(written(tmp_path / "one", weights, HOOK, **config))
    whole = features_of(ROWS, weights, k=config.get("k", 0))
    expected = {
        "": whole,
        "batch(1)": whole[1],
        "last(2) | chan(3)": whole[:, -2:, 3],
        "chan(2:20:3) | token(1:4)": whole[:, 1:4, 2:20:3],
        "batch(0) | abs": whole[0],
    }[text]

    result = _reduced(sae, text)

    assert isinstance(result, Values)
    np.testing.assert_allclose(result.array, expected, rtol=1e-4, atol=1e-5)


def test_the_strongest_features_of_a_row_and_their_statistics(tmp_path: Path) -> None:
    weights = random_weights(CHANNELS, FEATURES)
    sae = read_sae(written(tmp_path / "one", weights, HOOK))
    whole = features_of(ROWS, weights)

    top, statistics = _reduced(sae, "batch(0) | topk(3)"), _reduced(sae, "stats(mean,zero)")
    parts = _reduced(sae, "max(token)", partial=True)

    assert isinstance(top, Top)
    assert np.array_equal(top.indexes, np.argsort(-whole[0], axis=-1, kind="stable")[:, :3])
    assert isinstance(statistics, Values)
    np.testing.assert_allclose(statistics.array[0], whole.mean(), rtol=1e-4)
    assert isinstance(parts, Partial)


def test_too_many_features_are_refused_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sae = read_sae(written(tmp_path / "one", random_weights(CHANNELS, FEATURES), HOOK))
    monkeypatch.setattr("megatronapp.trainer.plugins.scope.derived.MAX_RESULTS", 100)

    with pytest.raises(DataError, match=r"288 values of features.*last\(8\)"):
        _reduced(sae, "")
    assert _reduced(sae, "chan(3)") is not None


def test_a_site_is_split_as_the_values_that_it_takes(tmp_path: Path) -> None:
    sae = read_sae(written(tmp_path / "one", random_weights(CHANNELS, FEATURES), HOOK))
    at = Coordinates(tensor=(1, 2), sequence_parallel=True, layers=(1,))
    standard = standard_sites(MODEL, at)

    [site] = encoded_sites(standard, (sae,), at)
    elsewhere = encoded_sites(standard, (sae,), Coordinates(layers=(0,)))
    shard = Shard(MODEL, at, {each.name: each for each in (*standard, site)}, saes=(sae,))

    assert (site.checked().name, site.layers, site.axes[2].size, site.axes[2].splits) == ("sae.one", (1,), FEATURES, ())
    assert [split.rule for split in site.axes[1].splits] == [Rule.SEQUENCE]
    assert elsewhere == []
    assert shard.generating.sites["sae.one"].axes[1].splits == ()


def test_weights_are_let_go(tmp_path: Path) -> None:
    sae = read_sae(written(tmp_path / "one", random_weights(CHANNELS, FEATURES), HOOK))
    sae.encode(torch.from_numpy(ROWS))
    (tmp_path / "one" / WEIGHTS).unlink()

    sae.encode(torch.from_numpy(ROWS))
    sae.release()

    with pytest.raises(DataError, match="can't be read"):
        sae.encode(torch.from_numpy(ROWS))


def test_names_of_folders_become_names_that_expressions_have(tmp_path: Path) -> None:
    for name in ("res-jb", "blocks.1.hook_resid_post"):
        written(tmp_path / name, random_weights(CHANNELS, FEATURES), HOOK)

    names = [sae.name for sae in found_saes(tmp_path)]

    assert names == ["sae.blocks_1_hook_resid_post", "sae.res_jb"]
    assert [parse(f"layers[1].{name} | topk(3)").selector.site for name in names] == names


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architecture": "gated"}, "architecture 'gated' is not taken; standard, topk, jumprelu are"),
        ({"metadata": {"hook_name": "blocks.1.attn.hook_z"}}, "hook_name 'blocks.1.attn.hook_z' is not taken"),
        ({"metadata": 3}, "hook_name None"),
        ({"architecture": "topk"}, "k None"),
        ({"architecture": "topk", "k": 25}, "k 25 of 24 features"),
        ({"architecture": "jumprelu"}, "it is to hold W_enc, b_enc, b_dec, threshold"),
        ({"activation_fn": "tanh-relu"}, "activation_fn 'tanh-relu' is not taken"),
        ({"normalize_activations": ["none"]}, "normalize_activations"),
        ({"rescale_acts_by_decoder_norm": True}, "fold them in"),
    ],
)
def test_a_configuration_that_is_not_understood_is_refused(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    folder = written(tmp_path / "one", random_weights(CHANNELS, FEATURES), HOOK, **config)

    _refused(folder, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"W_enc": None, "encoder.weight": (FEATURES, CHANNELS)}, "holds W_dec, b_dec, b_enc, encoder.weight"),
        ({"b_gate": (FEATURES,)}, "b_gate"),
        ({"W_enc": (FEATURES,)}, r"W_enc of shape \[24\]"),
        ({"b_enc": (FEATURES + 1,)}, r"b_enc of shape \[25\]; W_enc asks for \[24\]"),
        ({"b_dec": (1, CHANNELS)}, r"b_dec of shape \[1, 8\]"),
        ({"W_enc": (0, FEATURES)}, r"W_enc of shape \[0, 24\]"),
        ({"W_enc": (1, (1 << 20) + 1)}, "at most 1048576 features"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    tmp_path: Path, change: dict[str, tuple[int, ...] | None], message: str
) -> None:
    weights = random_weights(CHANNELS, FEATURES)
    for name, shape in change.items():
        weights.pop(name, None)
        if shape is not None:
            weights[name] = np.zeros(shape, np.float32)

    _refused(written(tmp_path / "one", weights, HOOK), message)


def test_what_is_no_safetensors_file_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "one", random_weights(CHANNELS, FEATURES), HOOK)
    whole = (folder / WEIGHTS).read_bytes()
    huge = json.dumps({"W_enc": {"dtype": "F32", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 8]}}).encode()

    for content in (pickle.dumps({"W_enc": [1.0]}), b"", whole[:-1], len(huge).to_bytes(8, "little") + huge + b"8" * 8):
        (folder / WEIGHTS).write_bytes(content)
        _refused(folder, "is torn or no safetensors file")
    (folder / WEIGHTS).unlink()
    _refused(folder, "pickled ones are not read")


def test_configurations_that_are_no_objects_are_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "one", random_weights(CHANNELS, FEATURES), HOOK)

    for text, message in (("[1]", "is no object"), ("{", "not readable as JSON"), (" " * (1 << 20) + "{}", "MiB")):
        (folder / CONFIG).write_text(text)
        _refused(folder, message)


def test_folders_that_hold_none_or_two_alike_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds 0 folders"):
        found_saes(tmp_path)
    for name in ("a-b", "a_b"):
        written(tmp_path / name, random_weights(CHANNELS, FEATURES), HOOK)
    with pytest.raises(UsageError, match=r"two folders would be sae\.a_b"):
        found_saes(tmp_path)
    _refused(written(tmp_path / "5", random_weights(CHANNELS, FEATURES), HOOK), "begin its name with a letter")


@pytest.mark.parametrize(("layers", "hidden", "message"), [(1, CHANNELS, "of layer 1"), (2, 9, "8 channels.*has 9")])
def test_an_sae_of_another_model_is_refused(tmp_path: Path, layers: int, hidden: int, message: str) -> None:
    sae = read_sae(written(tmp_path / "one", random_weights(CHANNELS, FEATURES), HOOK))

    with pytest.raises(UsageError, match=message):
        sae.check(layers, hidden)


def _refused(folder: Path, message: str) -> None:
    with pytest.raises(MegatronAppError, match=message) as refused:
        read_sae(folder)
    assert "\n" not in str(refused.value)


def _reduced(sae: Any, text: str, *, partial: bool = False) -> Any:
    at = Coordinates(layers=(1,))
    [site] = encoded_sites(standard_sites(MODEL, at), (sae,), at)
    operations = resolved(parse(f"x | {text}").operations if text else (), site.axes)
    reduced = reduce_features(torch.from_numpy(ROWS), sae, site.axes, operations, partial=partial)
    assert reduced is not None
    return reduced.on_host()
