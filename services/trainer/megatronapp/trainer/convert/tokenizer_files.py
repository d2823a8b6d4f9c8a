"""The files beside the weights: which tokenizer the trainer reads from them, and what goes along untouched."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from megatronapp.core.errors import UsageError
from megatronapp.trainer.convert.fields import CONFIG, Fields
from megatronapp.trainer.data import Tokenizer
from megatronapp.trainer.data.tiktoken_file import is_tiktoken
from megatronapp.trainer.data.tokenizers import SETTINGS

EXTRA_IDS = 100
"""Tokens of T5's vocabulary that mark what was cut out."""
KEPT = "hugging_face"
"""Of a checkpoint: the folder of the model's files that the trainer does not read, for the way back."""
_ALONG = (
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
)


def settings(folder: Path, family: str, rows: int, given: Mapping[str, str]) -> dict[str, str]:
    """The trainer's settings of the tokenizer, by name: those given, or what the folder holds. Raises UsageError."""
    if given.get("tokenizer_type") == "NullTokenizer":
        return {**given, "vocab_size": str(rows - 1)}
    if family == "megatron-bert":
        return _of_bert(folder, given)
    if family in ("t5", "mt5"):
        return _of_t5(folder, given)
    if given:
        return {"tokenizer_type": type_of(given.get("tokenizer_model", "")), **given}
    if (folder / "tokenizer.json").is_file():
        return {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": str(folder / "tokenizer.json")}
    words, merges = folder / "vocab.json", folder / "merges.txt"
    if family == "gpt2" and words.is_file() and merges.is_file():
        return {"tokenizer_type": "GPT2BPETokenizer", "vocab_file": str(words), "merge_file": str(merges)}
    pieces = str(folder / "tokenizer.model")
    if Path(pieces).is_file():
        return {"tokenizer_type": type_of(pieces), "tokenizer_model": pieces}
    raise UsageError(
        f"{folder} holds no tokenizer.json: give --tokenizer-model, or --tokenizer-type NullTokenizer to do without"
    )


def _of_bert(folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    words, options = folder / "vocab.txt", folder / SETTINGS
    if "vocab_file" not in given and not words.is_file():
        raise UsageError(f"{folder} holds no vocab.txt: give --vocab-file")
    lower = not options.is_file() or Fields.read(options).flag("do_lower_case", default=True)
    kind = "BertWordPieceLowerCase" if lower else "BertWordPieceCase"
    return {"tokenizer_type": kind, "vocab_file": str(words), **given}


def _of_t5(folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    pieces, options = folder / "spiece.model", folder / SETTINGS
    if not given and not pieces.is_file():
        raise UsageError(f"{folder} holds no spiece.model: give --tokenizer-model, the SentencePiece model of a T5")
    extra = Fields.read(options).values.get("extra_ids") if options.is_file() else None
    count = str(extra if type(extra) is int and 1 <= extra <= EXTRA_IDS else EXTRA_IDS)  # mT5 says 0, and has them
    kind = "SentencePieceTokenizer"
    return {"tokenizer_type": kind, "tokenizer_model": str(pieces), "vocab_extra_ids": count, **given}


def type_of(tokenizer_model: str) -> str:
    """The trainer's type for a file: Llama 3's tokenizer.model is tiktoken's, Llama 2's SentencePiece's."""
    file = Path(tokenizer_model)
    if file.suffix != ".model":
        return "HuggingFaceTokenizer"
    return "TikTokenizer" if file.is_file() and is_tiktoken(file.read_bytes()) else "Llama2Tokenizer"


def keep(source: Path, checkpoint: Path, tokenizer: Tokenizer) -> None:
    """Into a checkpoint, but for the files that are the trainer's tokenizer and lie there anyway."""
    (checkpoint / KEPT).mkdir()
    for name in _ALONG:
        file = source / name
        if file.is_file() and (name not in tokenizer.files or file.read_bytes() != tokenizer.files[name]):
            shutil.copyfile(file, checkpoint / KEPT / name)
