import json
from pathlib import Path

import numpy as np
import pytest
from megatron.core.datasets.indexed_dataset import IndexedDataset

from megatronapp.core.errors import DataError, MegatronAppError, UsageError
from megatronapp.trainer.data.preprocess import main


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(line + "\n" for line in lines))
    return path


def run(source: Path, *flags: str) -> list[list[int]]:
    prefix = source.with_name("out")
    assert main([f"--input={source}", f"--output-prefix={prefix}", "--tokenizer-type=ByteTokenizer", *flags]) == 0
    data = IndexedDataset(f"{prefix}_text_document")
    return [data[i].tolist() for i in range(len(data))]


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".jsonl")


@pytest.mark.parametrize("workers", [1, 2])
def test_documents_keep_their_order(tmp_path: Path, workers: int) -> None:
    texts = [f"document {i}\n" * (i % 5 + 1) for i in range(200)]
    source = write(tmp_path / "in.jsonl", *(json.dumps({"text": text}) for text in texts))

    documents = run(source, f"--workers={workers}", "--append-eod")

    assert [bytes(document[:-1]).decode() for document in documents] == texts
    assert {document[-1] for document in documents} == {256}
    assert left_over(tmp_path) == ["out_text_document.bin", "out_text_document.idx"]


def test_empty_lines_and_texts_are_no_documents(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", '{"text": "a"}', "", '{"text": ""}', '{"text": "b"}')

    assert run(source) == [[97], [98]]


def test_several_keys_give_several_files(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", '{"text": "a", "title": "T"}')

    run(source, "--json-keys", "text", "title")

    titles = IndexedDataset(str(tmp_path / "out_title_document"))
    assert titles[0].tolist() == [ord("T")]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"text": "a"', "not JSON"),
        pytest.param("[" * 100_000, "not JSON that is read: nested too deeply", id="deep"),
        ('["a"]', "not a JSON object"),
        (r'{"text": "\ud800"}', "the text has half a character"),
        ('{"txt": "a"}', r'no text under "text" \(keys: txt\)'),
        ('{"text": 1}', 'no text under "text"'),
        (r'{"a\nb": 1}', r'no text under "text" \(keys: a b\)'),
    ],
)
def test_a_broken_line_is_named_and_nothing_is_written(tmp_path: Path, line: str, says: str, workers: int) -> None:
    source = write(tmp_path / "in.jsonl", *['{"text": "a"}'] * 40, line)

    with pytest.raises(DataError, match=rf"in\.jsonl:41: {says}"):
        run(source, f"--workers={workers}")

    assert left_over(tmp_path) == []


def test_a_broken_run_leaves_the_earlier_output_alone(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", '{"text": "a"}')
    before = run(source)
    write(source, "broken")

    with pytest.raises(DataError):
        run(source)

    data = IndexedDataset(str(tmp_path / "out_text_document"))
    assert [data[0].tolist()] == before
    assert data.index.dtype == np.uint16


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--keep-newlines"], "--keep-newlines is not supported: newlines are always kept"),
        (["--tokenzier"], "--tokenzier"),
        (["--workers=0"], "--workers"),
        (["--tokenizer-type=Nothing"], "Nothing is not known"),
        (["--input=missing.jsonl"], "no such file"),
    ],
)
def test_wrong_flags_are_named(tmp_path: Path, flags: list[str], says: str) -> None:
    source = write(tmp_path / "in.jsonl", '{"text": "a"}')

    with pytest.raises(UsageError, match=says):
        run(source, *flags)


def test_an_empty_input_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MegatronAppError, match="no text"):
        run(write(tmp_path / "in.jsonl"))

    assert left_over(tmp_path) == []


def test_split_sentences_gives_each_sentence_a_sequence_of_its_document(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", '{"text": "One. Two."}', '{"text": "Three."}')
    flags = [f"--input={source}", f"--output-prefix={tmp_path / 'out'}", "--tokenizer-type=ByteTokenizer"]

    main([*flags, "--split-sentences", "--append-eod"])

    data = IndexedDataset(str(tmp_path / "out_text_sentence"))
    assert [bytes(data[i][data[i] < 256].tolist()).decode() for i in range(len(data))] == ["One.", "Two.", "Three."]
    assert [data[i].tolist().count(256) for i in range(len(data))] == [0, 1, 1]
    assert data.document_indices.tolist() == [0, 2, 3]
