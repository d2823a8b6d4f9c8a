import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from megatronapp.core.errors import ConfigError, DataError, UsageError
from megatronapp.trainer.config import DataConfig
from megatronapp.trainer.data import SequentialSampler, build_datasets, build_tokenizer, microbatches
from megatronapp.trainer.data.datasets import gpt_dataset
from megatronapp.trainer.data.preprocess import main as preprocess
from megatronapp.trainer.data.sampler import collate
from tests.support.forked import run_forked

EXAMPLES = Path(__file__).parents[4] / "examples" / "data"
GPT2 = {
    "tokenizer_type": "GPT2BPETokenizer",
    "vocab_file": str(EXAMPLES / "vocab.json"),
    "merge_file": str(EXAMPLES / "merges.txt"),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    prefix = tmp_path_factory.mktemp("corpus") / "corpus"
    flags = [f"--vocab-file={GPT2['vocab_file']}", f"--merge-file={GPT2['merge_file']}", "--append-eod"]
    preprocess(
        [f"--input={EXAMPLES}/corpus.jsonl", f"--output-prefix={prefix}", "--tokenizer-type=GPT2BPETokenizer", *flags]
    )
    return f"{prefix}_text_document"


@pytest.fixture(scope="module", autouse=True)
def process_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def build(config: DataConfig, **sizes: int) -> tuple[Any, Any, Any]:
    wanted = {"train_samples": 100, "valid_samples": 8, "test_samples": 0, **sizes}
    return build_datasets(config, build_tokenizer(config), gpt_dataset(config, 64), seed=1, **wanted)


def test_real_text_becomes_microbatches(corpus: str) -> None:
    config = DataConfig(data_path=(corpus,), **GPT2)
    tokenizer = build_tokenizer(config)
    train, valid, test = build(config)
    sampler = SequentialSampler(
        total_samples=100, consumed_samples=4, micro_batch_size=2, data_parallel_rank=0, data_parallel_size=2
    )

    first = next(microbatches(train, sampler, collate))

    assert len(train) >= 100
    assert len(valid) >= 8
    assert test is None
    assert first["tokens"].shape == first["labels"].shape == (2, 64)
    assert first["tokens"].dtype == torch.int64
    assert torch.equal(first["tokens"][:, 1:], first["labels"][:, :-1])
    assert first["work"] == (2 * 64, 2 * 64**2)
    assert torch.equal(first["tokens"][0], train[4]["tokens"])
    assert tokenizer.detokenize(first["tokens"][0].tolist()).isascii()


def tokens(corpus: str, num_workers: int) -> list[list[list[int]]]:
    """Of each microbatch."""
    config = DataConfig(data_path=(corpus,), **GPT2)
    sampler = SequentialSampler(
        total_samples=16, consumed_samples=0, micro_batch_size=4, data_parallel_rank=0, data_parallel_size=1
    )
    return [
        batch["tokens"].tolist() for batch in microbatches(build(config)[0], sampler, collate, num_workers=num_workers)
    ]


def test_a_file_that_is_read_gives_what_one_that_is_mapped_gives(corpus: str, tmp_path: Path) -> None:
    cached = {"data_cache_path": str(tmp_path), **GPT2}
    (mapped, *_), indices = build(DataConfig(data_path=(corpus,), **cached)), sorted(tmp_path.rglob("*.npy"))
    written = [index.stat().st_mtime_ns for index in indices]

    read, _, _ = build(DataConfig(data_path=(corpus,), no_mmap_bin_files=True, **cached))

    assert all(torch.equal(read[i]["tokens"], mapped[i]["tokens"]) for i in range(100))
    assert [index.stat().st_mtime_ns for index in sorted(tmp_path.rglob("*.npy"))] == written != []


def tokens_by_a_worker(corpus: str) -> list[list[list[int]]]:
    dist.init_process_group("gloo")
    found = tokens(corpus, num_workers=1)
    dist.destroy_process_group()
    return found


def test_two_builds_and_two_loaders_agree(corpus: str) -> None:
    here = tokens(corpus, num_workers=0)
    # A worker is forked, which a rank can do and a process of tests that has used gRPC can't.
    (there,) = run_forked(1, tokens_by_a_worker, corpus)

    assert len(here) == 4
    assert here == there


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A corpus of two tokens."""
    folder = tmp_path_factory.mktemp("other")
    (folder / "in.jsonl").write_text('{"text": "zzzz zzzz"}\n' * 200)
    preprocess([f"--input={folder}/in.jsonl", f"--output-prefix={folder}/other", "--tokenizer-type=ByteTokenizer"])
    return f"{folder}/other_text_document"


def is_of_other(sample: Any) -> bool:
    return set(sample["tokens"].tolist()) <= {ord("z"), ord(" ")}


def test_blends_follow_their_weights(corpus: str, other: str) -> None:
    config = DataConfig(data_path=("3", corpus, "1", other), split="1", **GPT2)

    train, _, _ = build(config, valid_samples=0)

    assert len(train) == 100
    assert sum(is_of_other(train[i]) for i in range(100)) == 25


def test_each_set_has_a_blend_of_its_own(corpus: str, other: str) -> None:
    config = DataConfig(
        train_data_path=("3", corpus, "1", other), valid_data_path=(other,), test_data_path=(corpus,), **GPT2
    )

    train, valid, test = build(config, test_samples=4)

    assert sum(is_of_other(train[i]) for i in range(100)) == 25
    assert all(is_of_other(valid[i]) for i in range(8))
    assert not any(is_of_other(test[i]) for i in range(4))


def test_a_set_without_data_is_none_where_nobody_asks_for_it(corpus: str) -> None:
    train, valid, test = build(DataConfig(train_data_path=(corpus,), **GPT2), valid_samples=0, test_samples=8)

    assert len(train) >= 100
    assert (valid, test) == (None, None)


def test_mock_data_needs_no_files() -> None:
    train, valid, _ = build(DataConfig(mock_data=True))

    assert train[0]["tokens"].shape == (64,)
    assert len(valid) >= 8


def test_data_made_anew_is_not_read_through_an_old_index(corpus: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for suffix in (".bin", ".idx"):
        shutil.copy(corpus + suffix, f"{copy}{suffix}")
    config = DataConfig(data_path=(str(copy),), data_cache_path=str(tmp_path / "cache"), **GPT2)
    build(config)
    (tmp_path / "in.jsonl").write_text('{"text": "1234567 1234567"}\n' * 300)
    flags = ["--tokenizer-type=NullTokenizer", "--vocab-size=2000000", "--json-keys", "text"]
    preprocess([f"--input={tmp_path}/in.jsonl", f"--output-prefix={tmp_path}/new", *flags])
    for suffix in (".bin", ".idx"):
        shutil.move(f"{tmp_path}/new_text_document{suffix}", f"{copy}{suffix}")

    train, _, _ = build(config, valid_samples=0)

    assert set(train[0]["tokens"].tolist()) == {1234567}


@pytest.mark.parametrize(
    ("config", "error", "says"),
    [
        ({}, UsageError, "--data-path .* or --mock-data"),
        ({"data_path": ("/nowhere/data",)}, ConfigError, "there is no file /nowhere/data.bin"),
        ({"data_path": ("CORPUS",), "split": "half"}, UsageError, "--split 'half'"),
        ({"data_path": ("CORPUS",), "split": "1,0,0"}, DataError, "0 tokens for validation.* or give another --split"),
        ({"train_data_path": ("CORPUS",)}, DataError, "no data for validation.* or give --valid-data-path"),
        ({"valid_data_path": ("CORPUS",)}, DataError, "no data for training.* or give --train-data-path"),
        ({"train_data_path": ("1", "CORPUS", "CORPUS", "1")}, UsageError, "--train-data-path takes prefixes"),
        ({"data_path": ("0.5", "CORPUS", "CORPUS", "0.5")}, UsageError, "a weight before each"),
        ({"data_path": ("-1", "CORPUS", "1", "CORPUS")}, UsageError, "not negative"),
        ({"data_path": ("CUT",)}, DataError, "cut short"),
        ({"data_path": ("FOREIGN",)}, DataError, "no index"),
    ],
)
def test_wrong_data_says_what_is_wrong(
    corpus: str, tmp_path: Path, config: dict[str, Any], error: type[Exception], says: str
) -> None:
    for name in ("CUT", "FOREIGN"):
        shutil.copy(f"{corpus}.idx", tmp_path / f"{name}.idx")
        (tmp_path / f"{name}.bin").write_bytes(b"12")
    (tmp_path / "FOREIGN.idx").write_bytes(b"something else")
    paths = {"CORPUS": corpus, "CUT": str(tmp_path / "CUT"), "FOREIGN": str(tmp_path / "FOREIGN")}
    config = {
        name: tuple(paths.get(part, part) for part in value) if name.endswith("data_path") else value
        for name, value in config.items()
    }

    with pytest.raises(error, match=says):
        build(DataConfig(**config, **GPT2))
