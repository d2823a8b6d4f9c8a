import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.errors import ConfigError, DataError, UsageError
from megatronapp.trainer.data.sentence_pieces import T5Tokenizer
from megatronapp.trainer.data.tokenizers import (
    BertWordPieceTokenizer,
    ByteTokenizer,
    HuggingFaceTokenizer,
    NullTokenizer,
    make_tokenizer,
)
from tests.support.hugging_face import write_sentencepiece, write_t5_pieces

EXAMPLES = Path(__file__).parents[4] / "examples" / "data"
GPT2 = {"vocab_file": str(EXAMPLES / "vocab.json"), "merge_file": str(EXAMPLES / "merges.txt")}


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_bytes_come_back(text: str) -> None:
    tokenizer = ByteTokenizer()

    assert tokenizer.detokenize(tokenizer.tokenize(text)) == text


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=80))
def test_gpt2_and_tokenizer_json_of_one_vocabulary_agree(text: str) -> None:
    from_files = make_tokenizer("GPT2BPETokenizer", **GPT2)
    from_json = make_tokenizer("HuggingFaceTokenizer", tokenizer_model=str(EXAMPLES))

    assert from_files.tokenize(text) == from_json.tokenize(text)
    assert from_files.detokenize(from_files.tokenize(text)) == text
    assert (from_files.eod, from_files.vocab_size) == (from_json.eod, from_json.vocab_size) == (0, 2048)


def test_eod_is_the_one_that_tokenizer_config_declares(tmp_path: Path) -> None:
    model = json.loads((EXAMPLES / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(model))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "a"}}))

    tokenizer = HuggingFaceTokenizer(tmp_path)

    assert tokenizer.eod == tokenizer.tokenize("a")[0]


@pytest.mark.parametrize("kind", ["ByteTokenizer", "HuggingFaceTokenizer", "SentencePieceTokenizer"])
def test_half_a_character_is_refused(tmp_path: Path, kind: str) -> None:
    write_sentencepiece(tmp_path)
    model = EXAMPLES if kind == "HuggingFaceTokenizer" else tmp_path / "tokenizer.model"

    with pytest.raises(DataError, match="half a character"):
        make_tokenizer(kind, tokenizer_model=str(model)).tokenize("a\ud800")


def test_what_is_wrong_with_a_file_is_one_line_whatever_stands_in_it(tmp_path: Path) -> None:
    model = json.loads((EXAMPLES / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(model | {"version": "1\n2"}))

    with pytest.raises(ConfigError, match=r"tokenizer\.json is no tokenizer\.json") as caught:
        HuggingFaceTokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_settings_beside_a_tokenizer_that_are_nested_too_deeply_are_one_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((EXAMPLES / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text("[" * 100_000)

    with pytest.raises(ConfigError, match=r"tokenizer_config\.json"):
        HuggingFaceTokenizer(tmp_path)


@pytest.mark.parametrize("role", ["eos_token", "bos_token"])
def test_half_a_character_as_a_special_token_is_one_error(tmp_path: Path, role: str) -> None:
    (tmp_path / "tokenizer.json").write_text((EXAMPLES / "tokenizer.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({role: "\ud800"}))

    with pytest.raises(ConfigError, match=r"tokenizer_config\.json beside the tokenizer can't be read: [^\n]+$"):
        HuggingFaceTokenizer(tmp_path)


def test_null_tokenizer_refuses_words_and_foreign_ids() -> None:
    tokenizer = NullTokenizer(100)

    assert tokenizer.tokenize("1 99 0") == [1, 99, 0]
    with pytest.raises(DataError, match="not words"):
        tokenizer.tokenize("1 two")
    with pytest.raises(DataError, match="100 lies outside"):
        tokenizer.tokenize("100")


@pytest.mark.parametrize(
    ("kind", "options", "error", "says"),
    [
        ("GPT2BPETokenizer", {}, UsageError, "--vocab-file and --merge-file"),
        ("GPT2BPETokenizer", {"vocab_file": "gone.json", "merge_file": "gone"}, ConfigError, "--vocab-file gone.json"),
        ("GPT2BPETokenizer", {**GPT2, "vocab_file": __file__}, ConfigError, "no GPT-2 vocabulary"),
        ("HuggingFaceTokenizer", {}, UsageError, "--tokenizer-model"),
        ("HuggingFaceTokenizer", {"tokenizer_model": __file__}, ConfigError, r"no tokenizer\.json"),
        ("NullTokenizer", {}, UsageError, "--vocab-size"),
        ("SentencePiece", {}, UsageError, "GPT2BPETokenizer, HuggingFaceTokenizer"),
    ],
)
def test_missing_options_and_broken_files_say_what_is_wrong(
    kind: str, options: dict[str, str], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        make_tokenizer(kind, **options)


def test_a_sentencepiece_model_is_read(tmp_path: Path) -> None:
    write_sentencepiece(tmp_path)
    file = str(tmp_path / "tokenizer.model")

    plain, of_llama = (
        make_tokenizer(kind, tokenizer_model=file) for kind in ("SentencePieceTokenizer", "Llama2Tokenizer")
    )

    ids = plain.tokenize("once upon a time")
    assert plain.detokenize(ids) == "once upon a time"
    assert of_llama.tokenize("once upon a time") == [of_llama.bos, *ids]
    assert (plain.bos, plain.eod) == (1, 2)
    assert max(ids) < plain.vocab_size
    assert plain.files == {"tokenizer.model": (tmp_path / "tokenizer.model").read_bytes()}
    assert plain.unique_identifiers != of_llama.unique_identifiers


@pytest.mark.parametrize("content", [b"", b"no model", None])
def test_what_is_no_sentencepiece_model_is_refused(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.model"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(ConfigError, match=r"tokenizer\.model"):
        make_tokenizer("SentencePieceTokenizer", tokenizer_model=str(file))
    with pytest.raises(UsageError, match="needs --tokenizer-model"):
        make_tokenizer("Llama2Tokenizer")


def test_t5s_marks_follow_its_pieces_the_first_one_last(tmp_path: Path) -> None:
    write_t5_pieces(tmp_path)
    options = {"tokenizer_model": str(tmp_path / "spiece.model"), "vocab_extra_ids": 3}

    plain = make_tokenizer("SentencePieceTokenizer", tokenizer_model=options["tokenizer_model"])
    tokenizer = make_tokenizer("SentencePieceTokenizer", **options)  # type: ignore[arg-type]

    assert isinstance(tokenizer, T5Tokenizer)
    assert tokenizer.vocab_size == plain.vocab_size + 3
    assert tokenizer.additional_special_tokens_ids == [tokenizer.vocab_size - 1 - number for number in range(3)]
    assert tokenizer.piece(tokenizer.vocab_size - 1) == "<extra_id_0>"
    assert (tokenizer.bos, tokenizer.eod, tokenizer.eos) == (0, 1, 1)
    assert tokenizer.tokenize("abc dab") == plain.tokenize("abc dab")
    assert tokenizer.detokenize([*tokenizer.tokenize("abc dab"), tokenizer.vocab_size - 1]) == "abc dab"


def test_the_marks_that_mt5s_pieces_have_are_taken(tmp_path: Path) -> None:
    marks = [f"\u2581<extra_id_{number}>" for number in (2, 1, 0)]
    write_t5_pieces(tmp_path, user_defined_symbols=marks)
    file = str(tmp_path / "spiece.model")

    tokenizer = make_tokenizer("SentencePieceTokenizer", tokenizer_model=file, vocab_extra_ids=3)

    assert isinstance(tokenizer, T5Tokenizer)
    assert tokenizer.vocab_size == make_tokenizer("SentencePieceTokenizer", tokenizer_model=file).vocab_size
    assert [tokenizer.piece(mark) for mark in tokenizer.additional_special_tokens_ids] == marks[::-1]


def test_pieces_without_padding_are_no_t5s(tmp_path: Path) -> None:
    write_sentencepiece(tmp_path)

    with pytest.raises(ConfigError, match="no token for padding"):
        make_tokenizer("SentencePieceTokenizer", tokenizer_model=str(tmp_path / "tokenizer.model"), vocab_extra_ids=3)


BERT = str(EXAMPLES / "vocab.txt")


def test_word_pieces_are_followed_by_the_tokens_of_no_word() -> None:
    tokenizer = make_tokenizer("BertWordPieceLowerCase", vocab_file=BERT, vocab_extra_ids=3)

    assert isinstance(tokenizer, BertWordPieceTokenizer)
    assert (tokenizer.pad, tokenizer.cls, tokenizer.sep, tokenizer.mask) == (0, 2, 3, 4)
    assert (tokenizer.bos, tokenizer.eos, tokenizer.eod) == (2048, 2049, 3)
    assert tokenizer.additional_special_tokens_ids == [2050, 2051, 2052]
    assert tokenizer.vocab_size == 2053
    assert tokenizer.detokenize(tokenizer.tokenize("The THRONE of")) == "the throne of"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=80))
def test_no_text_becomes_a_special_token_but_the_unknown_one(text: str) -> None:
    tokenizer = make_tokenizer("BertWordPieceLowerCase", vocab_file=BERT, vocab_extra_ids=2)

    ids = tokenizer.tokenize(f"{text} [MASK] [EOS] <extra_id_0>")

    assert all(token == 1 or 5 <= token < 2048 for token in ids)


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        ("[UNK]\n[PAD]\n[CLS]\n[SEP]\n[MASK]\n", "does not begin with"),
        ("[PAD]\n[UNK]\n[CLS]\n[SEP]\n", "has no token .MASK."),
        ("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\na\n", "a piece twice"),
        ("[PAD]\n\udcff\n", "is no text"),
    ],
)
def test_a_file_that_is_no_vocabulary_of_a_bert_is_refused(pieces: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "vocab.txt"
    file.write_text(pieces, errors="surrogateescape")

    with pytest.raises(ConfigError, match=says):
        make_tokenizer("BertWordPieceCase", vocab_file=str(file))


def test_words_that_a_vocabulary_without_an_unknown_token_lacks_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"</s>": 0, "one": 1}, unk_token="[UNK]"))
    words.add_special_tokens(["</s>"])
    words.save(str(file))

    with pytest.raises(DataError, match=r"can't split the text: .*UNK"):
        HuggingFaceTokenizer(file).tokenize("two")
