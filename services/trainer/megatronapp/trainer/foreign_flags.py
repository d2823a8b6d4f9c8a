"""Flags of Megatron-LM that are no settings of this trainer: other names for one, accepted without effect, or refused
with the way out. `foreign_flags.toml` says which is which, and lists the flags of Megatron-LM's own example scripts.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from megatronapp.core.errors import UsageError

TABLE = Path(__file__).with_name("foreign_flags.toml")
NO_POSITIONS = "--no-position-embedding"
SEQUENCE_PARALLEL = "--sequence-parallel"
WINDOW = "--window-size"


@dataclass(frozen=True)
class ForeignFlags:
    """`scripts`: flags by folder of examples. `meaningless`: (values that follow, why)."""

    scripts: Mapping[str, tuple[str, ...]]
    means: Mapping[str, tuple[str, ...]]
    in_samples: Mapping[str, str]
    meaningless: Mapping[str, tuple[int, str]]
    refused: Mapping[str, str]


@cache
def table() -> ForeignFlags:
    document = tomllib.loads(TABLE.read_text())
    return ForeignFlags(
        scripts={folder: tuple(flags.split()) for folder, flags in document["scripts"].items()},
        means={flag: tuple(words.split()) for flag, words in document["means"].items()},
        in_samples=document["in_samples"],
        meaningless={flag: (count, why) for flag, (count, why) in document["meaningless"].items()},
        refused=document["refused"],
    )


@dataclass(frozen=True)
class Translation:
    """`argv` in the trainer's own flags; `remarks`: a line about each flag that has no effect."""

    argv: list[str]
    remarks: list[str]


def translate(argv: Sequence[str]) -> Translation:
    """Megatron-LM's command line in the trainer's own flags. Raises UsageError for a flag that is refused."""
    known, given = table(), _Given(argv)
    out: list[str] = []
    remarks: list[str] = []
    for flag, words in given.groups():
        if flag in known.refused:
            raise UsageError(f"{flag} is refused: {known.refused[flag]}")
        if flag in known.meaningless:
            count, why = known.meaningless[flag]
            remarks.append(f"{flag} has no effect: {why}")
            out += words[1 + count :] if "=" not in words[0] else words[1:]
        elif flag in known.means:
            _, equals, value = words[0].partition("=")
            out += [*known.means[flag], *([value] if equals else []), *words[1:]]
        elif flag in known.in_samples:
            out += [known.in_samples[flag], str(given.steps(flag))]
        elif flag == NO_POSITIONS:
            # In Megatron-LM this leaves rotary positions on.
            out += [] if given.is_rotary else ["--position-embedding-type", "none"]
        elif flag == SEQUENCE_PARALLEL and given.value("--tensor-model-parallel-size", "1") == "1":
            remarks.append(f"{flag} has no effect: it needs --tensor-model-parallel-size 2 or more")
            out += words[1:]
        elif flag == WINDOW:
            out += [part for word in words for part in re.split("[,=]", word)]  # 128,0 is one word in Megatron-LM
        else:
            out += words
    return Translation([*out, *_implied(given)], remarks)


def _implied(given: _Given) -> list[str]:
    """The tokenizer that Megatron-LM takes for these files where none is named."""
    named = given.value("--tokenizer-type", "") or "--use-checkpoint-args" in given.flags
    if named or "--vocab-file" not in given.flags:
        return []
    return ["--tokenizer-type", "GPT2BPETokenizer" if "--merge-file" in given.flags else "BertWordPieceLowerCase"]


class _Given:
    """A command line as flags with the words that follow each."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = argv
        self.flags = {word.split("=", 1)[0] for word in argv if word.startswith("--")}

    def groups(self) -> Iterator[tuple[str, list[str]]]:
        """(flag, [the flag as typed, words up to the next one]); before the first flag: ("", words)."""
        flag, words = "", list[str]()
        for word in self._argv:
            if word.startswith("--"):
                if words:
                    yield flag, words
                flag, words = word.split("=", 1)[0], [word]
            else:
                words.append(word)
        if words:
            yield flag, words

    def value(self, flag: str, default: str) -> str:
        """The last value given."""
        for name, words in reversed(list(self.groups())):
            if name == flag:
                return words[0].partition("=")[2] or "".join(words[1:2])
        return default

    @property
    def is_rotary(self) -> bool:
        return "--use-rotary-position-embeddings" in self.flags or self.value("--position-embedding-type", "") == "rope"

    def steps(self, flag: str) -> int:
        """Of the flag's samples. Raises UsageError."""
        if "--rampup-batch-size" in self.flags:
            raise UsageError(f"{flag} can't be counted in steps while the batch grows: give {table().in_samples[flag]}")
        try:
            samples, batch = int(self.value(flag, "")), int(self.value("--global-batch-size", ""))
        except ValueError as error:
            raise UsageError(f"{flag} takes a whole number of samples, and needs --global-batch-size") from error
        if batch < 1:
            raise UsageError(f"--global-batch-size {batch} is too small: the least is 1")
        return samples // batch
