"""Llama 3's tokenizer.model is read as tiktoken reads it: here by its rule, written out."""

from __future__ import annotations

import base64
import random
import re
from itertools import pairwise
from pathlib import Path

import pytest

from megatronapp.core.errors import ConfigError
from megatronapp.trainer.convert.tokenizer_files import type_of
from megatronapp.trainer.data.tiktoken_file import is_tiktoken, specials
from megatronapp.trainer.data.tokenizers import TikTokenizer, make_tokenizer
from tests.support.hugging_face import write_sentencepiece

WORDS = re.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|(?:[^\r\n\w]|_)?[^\W\d_]+|\d{1,3}| ?(?:[^\s\w]|_)+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CORPUS = "the quick brown fox jumps over the lazy dog; it's 1234 o'clock, naïve 中文 text\n\n  there, the end. " * 3


def lowest_first(word: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """Of the neighbours that make a known token, the pair of the lowest rank is joined, until there is none."""
    parts = [bytes([value]) for value in word]
    while True:
        joined = [(ranks[a + b], at) for at, (a, b) in enumerate(pairwise(parts)) if a + b in ranks]
        if not joined:
            return parts
        at = min(joined)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def learned(tokens: int) -> dict[bytes, int]:
    """Ranks of all bytes, in an order of their own, and of the pairs that are most frequent then."""
    ranks = {bytes([value]): rank for rank, value in enumerate(random.Random(1).sample(range(256), 256))}
    words = [word.encode() for word in WORDS.findall(CORPUS)]
    while len(ranks) < tokens:
        split = [lowest_first(word, ranks) for word in words]
        pairs = [a + b for parts in split for a, b in pairwise(parts)]
        ranks[max(sorted(set(pairs)), key=pairs.count)] = len(ranks)
    return ranks


RANKS = learned(300)


def written(folder: Path, ranks: dict[bytes, int] = RANKS) -> Path:
    file = folder / "tokenizer.model"
    file.write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()))
    return file


def test_ids_are_those_of_tiktokens_rule(tmp_path: Path) -> None:
    tokenizer = make_tokenizer("TikTokenizer", tokenizer_model=str(written(tmp_path)))

    for text in (CORPUS, "They're over-the-top: 98765!\r\n\tnaïve 中文中 🦊", "", "<|end_of_text|>"):
        wanted = [RANKS[part] for word in WORDS.findall(text) for part in lowest_first(word.encode(), RANKS)]
        assert tokenizer.tokenize(text) == wanted
        assert tokenizer.detokenize(wanted) == text


def test_special_tokens_follow_the_files(tmp_path: Path) -> None:
    tokenizer = TikTokenizer(written(tmp_path))

    assert tokenizer.vocab_size == 300 + 256
    assert (tokenizer.bos, tokenizer.eod) == (300, 301)
    assert tokenizer.piece(309) == "<|eot_id|>"
    assert len(set(specials())) == 256
    assert specials()[255] == "<|reserved_special_token_250|>"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda text: "", "line 1,"),
        (lambda text: text.replace(" 7\n", " 8\n"), "line 8,"),
        (lambda text: text.replace(" 7\n", "\n"), "line 8,"),
        (lambda text: text + text.splitlines()[0].split()[0] + " 300\n", "line 301,"),
        (lambda text: "\n".join(text.splitlines()[:200]), "no token for the byte"),
        (lambda text: '[{"rank": 0, "token_bytes": "AA=="}]', "give Llama 3's tokenizer.model"),
    ],
)
def test_what_is_no_such_file_is_refused_by_its_line(tmp_path: Path, spoil, said: str) -> None:
    file = written(tmp_path)
    file.write_text(spoil(file.read_text()))

    with pytest.raises(ConfigError, match=said):
        TikTokenizer(file)


def test_the_converter_tells_llamas_two_files_of_one_name_apart(tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    write_sentencepiece(tmp_path / "two")

    assert type_of(str(written(tmp_path))) == "TikTokenizer"
    assert type_of(str(tmp_path / "two" / "tokenizer.model")) == "Llama2Tokenizer"
    assert type_of("tokenizer.json") == "HuggingFaceTokenizer"
    assert not is_tiktoken(b"")
