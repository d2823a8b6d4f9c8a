"""MegaScope and generation in the layouts that `make test` leaves out, and on ranks that torchrun starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.generate.main import main
from tests.integration.trainer.generate import test_border, test_layouts, test_resident
from tests.integration.trainer.generate.conftest import folder  # noqa: F401
from tests.integration.trainer.generate.test_layouts import PP2, TP2, Alone, FolderOf, alone, folder_of  # noqa: F401
from tests.integration.trainer.generate.test_main import typed
from tests.integration.trainer.plugins.scope import test_perturb, test_sites
from tests.integration.trainer.plugins.scope.test_sites import FULL

pytestmark = pytest.mark.e2e

TEXT_OF_TWO = ["--prompt", "He said", "--prompt", "the fox", "--max-new-tokens", "6", "--ignore-end-of-document"]


@pytest.mark.parametrize(
    ("model", "ranks", "layout"),
    [
        ("gpt", 1, f"{FULL} 1"),
        ("gpt", 2, "--pipeline-model-parallel-size 2 --recompute-granularity selective"),
        ("llama", 4, "--tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer"),
    ],
)
def test_sites_and_their_gradients(model: str, ranks: int, layout: str) -> None:
    test_sites.test_sites_and_their_gradients_are_those_of_one_process(model, ranks, layout)


def test_disturbances_over_replicas_that_share_an_optimizer() -> None:
    test_perturb.test_a_layout_is_disturbed_as_one_process_is(2, "--use-distributed-optimizer")


@pytest.mark.parametrize(("model", "layout"), [("gpt", PP2), ("gpt", TP2), ("moe", TP2)])
def test_text_of_every_layout(model: str, layout: dict[str, int], folder_of: FolderOf, alone: Alone) -> None:  # noqa: F811
    test_layouts.test_every_layout_gives_the_text_that_one_process_gives(model, layout, folder_of, alone)


@pytest.mark.parametrize("model", ["gpt", "moe"])
def test_text_with_a_cache(model: str, alone: Alone) -> None:  # noqa: F811
    test_layouts.test_with_a_cache_it_is_what_plain_forward_passes_give(model, alone)


@pytest.mark.parametrize("layout", [{}, {"pipeline_model_parallel_size": 2}])
def test_requests_that_take_turns(layout: dict[str, int], folder: Path) -> None:  # noqa: F811
    test_resident.test_requests_take_turns_and_answer_as_if_alone(layout, folder)


@pytest.mark.parametrize(
    "flags",
    [
        "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 --bf16",
        "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
    ],
)
def test_text_at_a_border(flags: str, tmp_path: Path) -> None:
    test_border.test_text_at_a_border_is_the_checkpoints_and_leaves_the_run_as_it_was(2, flags, tmp_path)


def test_one_process_and_two_ranks_write_the_same_text(folder: Path) -> None:  # noqa: F811
    one = typed(main, "--checkpoint", folder, *TEXT_OF_TWO)
    given = ["--checkpoint", str(folder), "--prompts-file", "-", *TEXT_OF_TWO[4:]]
    split = subprocess.run(
        [sys.executable, "-m", "megatronapp.trainer.generate", *given, "--tensor-model-parallel-size", "2"],
        input="He said\nthe fox\n",
        capture_output=True,
        text=True,
        check=True,
    )

    assert (one.code, one.err) == (0, "")
    assert split.stdout == one.out
    assert "--- 0\nHe said" in one.out
    assert "--- 1\nthe fox" in one.out
