"""The files beside the weights: which tokenizer the trainer reads from them, and what goes along untouched."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from megatronapp.core.errors import UsageError
from megatronapp.trainer.convert.fields import CONFIG
from megatronapp.trainer.data import Tokenizer
from megatronapp.trainer.data.tiktoken_file import is_tiktoken

KEPT = "hugging_face"
"""Of a checkpoint: the folder of the model's files that the trainer does not read, for the way back."""
_ALONG = (
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)


def settings(folder: Path, family: str, rows: int, given: Mapping[str, str]) -> dict[str, str]:
    """The trainer's settings of the tokenizer, by name: those given, or what the folder holds. Raises UsageError."""
    if given.get("tokenizer_type") == "NullTokenizer":
        return {**given, "vocab_size": str(rows - 1)}
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
