"""A script in the form of Accelerate's page: it trains, evaluates, generates and saves, alike on every layout."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from megatronapp.trainer import engine, launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.data.preprocess import main as preprocess
from tests.support.accelerate_script import main, on_indexed_data
from tests.support.forked import run_forked

CORPUS = Path(__file__).parents[4] / "examples" / "data" / "corpus.jsonl"


def test_a_loss_and_a_loop_of_the_scripts_own(tmp_path: Path) -> None:
    (alone,) = run_forked(1, partial(main, output_dir=str(tmp_path)))
    split = run_forked(2, partial(main, pp_degree=2))

    assert [rank["main"] for rank in split] == [False, True]
    assert split[1]["losses"] == pytest.approx(alone["losses"], abs=1e-5)
    assert split[1]["eval"] == pytest.approx(alone["eval"], abs=1e-5)
    assert split[0]["losses"] == [0.0] * 4
    assert alone["batch"] == 4
    assert alone["logits"] == [4, 16, 97]
    assert [len(row) for row in alone["text"]] == [7, 7]
    assert (tmp_path / "iter_0000004" / "complete.json").exists()


def test_without_weight_the_scripts_loss_is_that_of_the_built_in_step() -> None:
    built_in, unweighted = (run_forked(1, partial(main, alpha=alpha))[0]["losses"] for alpha in (None, 0.0))

    assert unweighted == pytest.approx(built_in, abs=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("layout", [{"tp_degree": 2}, {"use_distributed_optimizer": True, "num_micro_batches": 1}])
def test_other_layouts_learn_the_same(layout: dict[str, int]) -> None:
    losses = run_forked(2, partial(main, **layout))[1]["losses"]

    assert losses == pytest.approx(run_forked(1, main)[0]["losses"], abs=1e-5)


def test_an_indexed_dataset(tmp_path: Path) -> None:
    tokens = ["--tokenizer-type=NullTokenizer", "--vocab-size=96"]
    corpus = tmp_path / "ids.jsonl"
    corpus.write_text('{"text": "' + " ".join(str(each % 96) for each in range(400)) + '"}\n' * 1)
    corpus.write_text(corpus.read_text() * 20)
    preprocess([f"--input={corpus}", f"--output-prefix={tmp_path / 'ids'}", *tokens])

    losses = run_forked(1, on_indexed_data, f"{tmp_path / 'ids'}_text_document")[0]

    assert losses[3] < losses[0]
    assert losses[4] < losses[0]
