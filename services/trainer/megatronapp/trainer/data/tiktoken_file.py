"""Llama 3's tokenizer.model, of tiktoken's format: a line for each token, its bytes in base64 and its rank. A text is
cut into words by a pattern; of a word's neighbouring tokens those are joined first that make the lowest rank."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from megatronapp.core.errors import ConfigError

BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_NAMED = {0: BEGIN, 1: END, 6: "<|start_header_id|>", 7: "<|end_header_id|>", 9: "<|eot_id|>"}
_SPECIALS = 256
_LINE = re.compile(rb"([A-Za-z0-9+/]+={0,2}) (\d{1,7})\r?")


def is_tiktoken(content: bytes) -> bool:
    """By its first line; SentencePiece's files of the same name are binary."""
    return _LINE.fullmatch(content[:4096].partition(b"\n")[0]) is not None


def backend(content: bytes, file: Path) -> Any:
    """A tokenizer of the `tokenizers` library that finds what tiktoken finds; special tokens in a text are text. Raises
    ConfigError."""
    ranks = _ranks(content, file)
    spelled = {token: _spelled(token) for token in ranks}
    merges = [(spelled[left], spelled[right]) for left, right in _merges(ranks)]
    vocabulary = {spelled[token]: rank for token, rank in ranks.items()}
    vocabulary |= {name: len(ranks) + number for number, name in enumerate(specials())}
    tokenizer = Tokenizer(BPE(vocabulary, merges, ignore_merges=True))
    tokenizer.pre_tokenizer = Sequence(
        [Split(Regex(_WORDS), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = ByteLevelDecoder()
    return tokenizer


def specials() -> list[str]:
    """Llama 3's, which follow the file's tokens."""
    reserved = (f"<|reserved_special_token_{number}|>" for number in range(_SPECIALS))
    return [_NAMED.get(number) or next(reserved) for number in range(_SPECIALS)]


def _ranks(content: bytes, file: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(content.removesuffix(b"\n").split(b"\n")):
        found = _LINE.fullmatch(line)
        try:
            token = base64.b64decode(found[1], validate=True) if found else b""
        except ValueError:
            token = b""
        if not found or not token or token in ranks or int(found[2]) != number:
            raise ConfigError(
                f"{file}, line {number + 1}, is no token of tiktoken's format with rank {number}: give Llama 3's "
                "tokenizer.model, or a tokenizer.json with --tokenizer-type HuggingFaceTokenizer"
            )
        ranks[token] = number
    missing = [value for value in range(256) if bytes([value]) not in ranks]
    if missing:
        raise ConfigError(f"{file} has no token for the byte {missing[0]}: give Llama 3's tokenizer.model")
    return ranks


def _merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """In the order of what they make; of several that make one token those of lower ranks come first."""
    merges: list[tuple[bytes, bytes]] = []
    for token in ranks:
        halves = ((token[:at], token[at:]) for at in range(1, len(token)))
        known = [(left, right) for left, right in halves if left in ranks and right in ranks]
        merges += sorted(known, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
    return merges


def _letters() -> list[str]:
    """Of each byte the printable character that stands for it in byte-level BPE, as GPT-2 has it."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(value if value in printable else next(others)) for value in range(256)]


_LETTERS = _letters()


def _spelled(token: bytes) -> str:
    return "".join(_LETTERS[value] for value in token)
