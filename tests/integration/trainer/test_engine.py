"""A loop of one's own: its steps are the trainer's, whatever of them is replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.engine import MegatronEngine, gather_across_data_parallel_groups
from tests.support.forked import RankFailedError, run_forked
from tests.support.training import TINY, train

STEP = "--train-step tests.support.own_steps:"
OWN_DATA = TINY.replace("--mock-data", "").replace("ByteTokenizer", "NullTokenizer --vocab-size 96")


def losses_of_engine(flags: str, steps: int) -> list[float | None]:
    with MegatronEngine(flags, plugins=()) as engine:
        return [engine.train_step().loss for _ in range(steps)]


def rows(count: int, step: int = 0) -> torch.Tensor:
    return torch.randint(0, 96, (count, 16), generator=torch.Generator().manual_seed(step))


def on_own_data(flags: str) -> dict[str, Any]:
    """Each data rank is given its rows of the same global batches."""
    with MegatronEngine(f"{OWN_DATA} --train-iters 4 {flags}", plugins=()) as engine:
        ranks = 8 // engine.microbatches // 2
        own = torch.distributed.get_rank() * ranks // torch.distributed.get_world_size()
        batches = [{"input_ids": rows(8, step).chunk(ranks)[own]} for step in range(3)]
        losses = [engine.train_step(batch).loss for batch in batches]
        logits = engine.eval_step(batches[0], return_logits=True).logits
        text = engine.generate([(1, 2, 3)], max_new_tokens=4)
        main = engine.is_main_process
    return {"losses": losses, "logits": None if logits is None else logits.tolist(), "text": text, "main": main}


def test_its_steps_are_those_of_the_loop() -> None:
    flags = f"{TINY} --train-iters 4 --hidden-dropout 0.1"

    assert run_forked(1, losses_of_engine, flags, 4)[0] == run_forked(1, train, flags)[0].losses


def test_a_step_of_ones_own_with_the_built_in_loss_is_equal_bit_by_bit() -> None:
    flags = f"{TINY} --train-iters 4"

    assert run_forked(1, train, f"{flags} {STEP}Same")[0].losses == run_forked(1, train, flags)[0].losses


def test_a_loss_of_ones_own_is_learned_and_logged() -> None:
    flags = f"{TINY} --train-iters 2"

    scaled = run_forked(1, train, f'{flags} {STEP}Scaled --train-step-kwargs {{"scale":2.0}}')[0].losses

    assert scaled[0] == pytest.approx(2 * run_forked(1, train, flags)[0].losses[0], rel=1e-6)


def test_logits_losses_and_text_of_own_data_are_those_of_one_process() -> None:
    alone = run_forked(1, on_own_data, "")[0]
    split = run_forked(2, on_own_data, "--pipeline-model-parallel-size 2")

    assert [rank["main"] for rank in split] == [False, True]
    assert split[0]["losses"] == [None] * 3
    assert split[1]["losses"] == pytest.approx(alone["losses"], abs=1e-5)
    assert split[0]["logits"] is None
    assert torch.tensor(split[1]["logits"]).sub(torch.tensor(alone["logits"])).abs().max() < 1e-5
    assert [rank["text"] for rank in split] == [alone["text"]] * 2
    assert alone["text"][0][:3] == [1, 2, 3]


@pytest.mark.long
@pytest.mark.parametrize("layout", ["--tensor-model-parallel-size 2", "--use-distributed-optimizer"])
def test_other_layouts_learn_the_same_of_own_data(layout: str) -> None:
    alone = run_forked(1, on_own_data, "")[0]

    assert run_forked(2, on_own_data, layout)[1]["losses"] == pytest.approx(alone["losses"], abs=1e-5)


def saved_and_loaded(folder: Path) -> tuple[Any, Any]:
    flags = f"{OWN_DATA} --train-iters 8"
    batch = {"input_ids": rows(8)}
    with MegatronEngine(flags, plugins=()) as engine:
        engine.train_step(batch)
        engine.save(folder)
        after = engine.train_step(batch).loss
        engine.load(folder)
        return (engine.step, after), (1, engine.train_step(batch).loss)


def test_a_checkpoint_is_gone_on_from(tmp_path: Path) -> None:
    then, again = run_forked(1, saved_and_loaded, tmp_path)[0]

    assert then == again


def provided() -> list[Any]:
    """Model, optimizer and learning rate from hooks; data from lists."""
    from megatron.core.optimizer import get_megatron_optimizer, get_standard_config_overrides

    from megatronapp.trainer.models.gpt import FAMILY

    asked: list[Any] = []

    def model(config: Any, transformer: Any, place: Any) -> torch.nn.Module:
        asked.append("model")
        chunk = FAMILY.build(config, transformer, place)
        for parameter in chunk.parameters():
            torch.nn.init.constant_(parameter, 0.01)
        return chunk

    def optimizer(options: Any, chunks: Any) -> Any:
        asked.append("optimizer")
        return get_megatron_optimizer(options, chunks, config_overrides=get_standard_config_overrides(options))

    class Constant:
        """Half of --lr."""

        def __init__(self, optimizer: Any) -> None:
            for group in optimizer.param_groups:
                group["lr"] = 5e-4

        def step(self, increment: int) -> None:
            asked.append(f"step {increment}")

    with MegatronEngine(
        f"{OWN_DATA} --train-iters 2",
        model_provider=model,
        optimizer_provider=optimizer,
        scheduler_provider=Constant,
        datasets=lambda: ([one_sample() for _ in range(16)], None, None),
        plugins=(),
    ) as engine:
        result = engine.train_step()
    return [*asked, result.learning_rate, result.loss]


def one_sample() -> dict[str, torch.Tensor]:
    tokens = torch.arange(17)
    return {
        "tokens": tokens[:-1],
        "labels": tokens[1:],
        "loss_mask": torch.ones(16),
        "position_ids": torch.arange(16),
    }


def test_model_optimizer_learning_rate_and_data_may_be_ones_own() -> None:
    *asked, rate, loss = run_forked(1, provided)[0]

    assert asked == ["model", "optimizer", "step 1"]
    assert rate == 5e-4
    assert loss == pytest.approx(torch.log(torch.tensor(128.0)).item(), rel=1e-5)


def step_without_data() -> None:
    with MegatronEngine(f"{OWN_DATA} --train-iters 2", plugins=()) as engine:
        engine.train_step()


def test_a_step_without_data_says_what_to_give() -> None:
    with pytest.raises(RankFailedError, match="this step has no data: give it a batch"):
        run_forked(1, step_without_data)


def gathered() -> list[list[float]]:
    with MegatronEngine(f"{OWN_DATA} --train-iters 1", plugins=()):
        return gather_across_data_parallel_groups(torch.full((1, 2), torch.distributed.get_rank() + 0.5)).tolist()


def test_rows_are_gathered_over_data_ranks_in_their_order() -> None:
    assert run_forked(2, gathered)[0] == [[0.5, 0.5], [1.5, 1.5]]
