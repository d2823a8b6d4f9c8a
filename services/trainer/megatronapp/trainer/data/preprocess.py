"""`megatronapp data preprocess`: text, one JSON sample per line, into the .bin and .idx that training reads.

The flags and the output are those of Megatron's tools/preprocess_data.py. Lines are tokenized by several processes and
written in their order by one. Output appears under its name only when it is whole.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, NoReturn

import numpy as np
import numpy.typing as npt

from megatronapp.core.errors import DataError, UnavailableError, UsageError
from megatronapp.trainer.data.indexed import DocumentWriter
from megatronapp.trainer.data.sentences import split_sentences
from megatronapp.trainer.data.tokenizers import TOKENIZER_TYPES, Tokenizer, make_tokenizer

LINES_PER_TASK = 32
MAX_SHOWN = 200
"""Characters of a line's keys in its error."""
REFUSED = {
    "--partitions": "one run takes one input file; give --workers instead",
    "--keep-newlines": "newlines are always kept",
}


@dataclass(frozen=True)
class EncodedLine:
    """A line's token ids per JSON key, a sequence or one for each sentence, and how many bytes of text they came
    from."""

    tokens: dict[str, list[npt.NDArray[np.int32]]]
    read_bytes: int


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        for flag, why in REFUSED.items():
            if flag in message:
                raise UsageError(f"{flag} is not supported: {why}")
        raise UsageError(f"{message}; see --help")


def parse(argv: list[str]) -> argparse.Namespace:
    parser = _Parser(prog="megatronapp data preprocess", description=__doc__, allow_abbrev=False)
    parser.add_argument("--input", type=Path, required=True, help="text, one JSON object per line")
    parser.add_argument(
        "--output-prefix",
        type=Path,
        required=True,
        help="writes <prefix>_<key>_document.{bin,idx}, or …_sentence.… with --split-sentences",
    )
    parser.add_argument("--json-keys", nargs="+", default=["text"], help="keys of the object to take (default: text)")
    parser.add_argument("--tokenizer-type", required=True, metavar="TYPE", help=", ".join(TOKENIZER_TYPES))
    parser.add_argument("--vocab-file", help="vocab.json of GPT2BPETokenizer, vocab.txt of BertWordPieceLowerCase")
    parser.add_argument("--merge-file", help="merges.txt of GPT2BPETokenizer")
    parser.add_argument(
        "--tokenizer-model",
        help="tokenizer.json of HuggingFaceTokenizer, tokenizer.model of SentencePiece or Llama 3",
    )
    parser.add_argument("--vocab-size", type=int, help="number of token ids of NullTokenizer")
    parser.add_argument("--vocab-extra-ids", type=int, default=0, help="tokens of no word, as in training")
    parser.add_argument("--split-sentences", action="store_true", help="a sequence for each sentence, as BERT needs")
    parser.add_argument("--append-eod", action="store_true", help="end every document with the end-of-document token")
    parser.add_argument("--workers", type=int, default=1, help="processes that tokenize (default: 1)")
    parser.add_argument("--log-interval", type=int, default=1000, help="lines between two progress lines")
    options = parser.parse_args(argv)
    if options.workers < 1 or options.log_interval < 1:
        raise UsageError("--workers and --log-interval must be at least 1")
    if not options.input.is_file():
        raise UsageError(f"--input {options.input}: there is no such file")
    return options


def main(argv: list[str]) -> int:
    """Run the command. Raises UsageError, ConfigError, DataError (naming file:line) or UnavailableError (disk)."""
    options = parse(argv)
    tokenizer = make_tokenizer(
        options.tokenizer_type,
        vocab_file=options.vocab_file,
        merge_file=options.merge_file,
        tokenizer_model=options.tokenizer_model,
        vocab_size=options.vocab_size,
        vocab_extra_ids=options.vocab_extra_ids,
    )
    level = "sentence" if options.split_sentences else "document"
    prefixes = {key: output_prefix(options.output_prefix, key, level) for key in options.json_keys}
    encode = partial(
        encode_line,
        tokenizer=tokenizer,
        keys=options.json_keys,
        append_eod=options.append_eod,
        split=split_sentences if options.split_sentences else one_sequence,
    )
    try:
        with options.input.open("rb") as source, _encoded(source, encode, options.workers) as lines:
            documents = _write(lines, prefixes, tokenizer.vocab_size, options)
    except OSError as error:
        raise UnavailableError(f"{error.filename or options.output_prefix}: {error.strerror}") from error
    if not documents:
        raise DataError(f"{options.input} has no text under {', '.join(options.json_keys)}")
    return 0


def output_prefix(prefix: Path, key: str, level: str = "document") -> Path:
    return prefix.with_name(f"{prefix.name}_{key}_{level}")


def one_sequence(text: str) -> list[str]:
    return [text]


def encode_line(
    line: bytes,
    *,
    tokenizer: Tokenizer,
    keys: list[str],
    append_eod: bool,
    split: Callable[[str], list[str]] = one_sequence,
) -> EncodedLine | str:
    """Tokenize one line; a line that can't be used comes back as the reason why."""
    if not line.strip():
        return EncodedLine({}, len(line))
    try:
        sample = json.loads(line)
    except RecursionError:
        return "not JSON that is read: nested too deeply"
    except ValueError as error:
        return f"not JSON: {error}"
    if not isinstance(sample, dict):
        return "not a JSON object"
    tokens: dict[str, list[npt.NDArray[np.int32]]] = {}
    for key in keys:
        text = sample.get(key)
        if not isinstance(text, str):
            there = " ".join(", ".join(sample).split())[:MAX_SHOWN]
            return f'no text under "{key}" (keys: {there or "none"})'
        try:
            sequences = [ids for ids in map(tokenizer.tokenize, split(text)) if ids]
        except DataError as error:
            return str(error)
        if sequences:
            sequences[-1] += [tokenizer.eod] if append_eod else []
            tokens[key] = [np.array(ids, dtype=np.int32) for ids in sequences]
    return EncodedLine(tokens, len(line))


@contextmanager
def _encoded(
    source: BinaryIO, encode: partial[EncodedLine | str], workers: int
) -> Iterator[Iterable[EncodedLine | str]]:
    """The lines of `source` encoded, in their order."""
    if workers == 1:
        yield map(encode, source)
        return
    # The processes are the parallelism; the library's threads inside each would only fight over the cores.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        yield pool.imap(encode, source, chunksize=LINES_PER_TASK)


def _write(
    lines: Iterable[EncodedLine | str], prefixes: dict[str, Path], vocab_size: int, options: argparse.Namespace
) -> int:
    """Write all documents and return their number."""
    progress = _Progress(options.log_interval)
    with ExitStack() as stack:
        writers = {key: stack.enter_context(DocumentWriter(prefix, vocab_size)) for key, prefix in prefixes.items()}
        for number, line in enumerate(lines, start=1):
            if isinstance(line, str):
                raise DataError(f"{options.input}:{number}: {line}; nothing was written")
            for key, sequences in line.tokens.items():
                writers[key].add(*sequences)
            progress.line(line)
        if not all(writer.documents for writer in writers.values()):
            empty = next(key for key, writer in writers.items() if not writer.documents)
            raise DataError(f'{options.input} has no text under "{empty}"; nothing was written')
        for writer in writers.values():
            writer.commit()
    progress.end(prefixes)
    return progress.documents


class _Progress:
    """Counts, and says so every `interval` lines."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._started = time.monotonic()
        self._lines = self.documents = self._tokens = self._bytes = 0

    def line(self, line: EncodedLine) -> None:
        self._lines += 1
        self.documents += bool(line.tokens)
        self._tokens += sum(len(ids) for sequences in line.tokens.values() for ids in sequences)
        self._bytes += line.read_bytes
        if self._lines % self._interval == 0:
            self._print_progress()

    def end(self, prefixes: dict[str, Path]) -> None:
        self._print_progress()
        for prefix in prefixes.values():
            print(f"wrote {prefix}.bin and {prefix}.idx")

    def _print_progress(self) -> None:
        """On standard error, whatever the log level: somebody waits for it."""
        rate = self._bytes / max(time.monotonic() - self._started, 1e-9) / 1e6
        what = f"{self._lines:,} lines, {self.documents:,} documents, {self._tokens:,} tokens"
        print(f"{what}, {rate:.2f} MB/s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
