"""The flags of `megatronapp generate`: a request, and where the model is. Megatron-LM's names are understood too."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from megatronapp.core.errors import DataError, NotFoundError, UsageError
from megatronapp.core.generation import GenerationRequest, Sampling
from megatronapp.trainer.config import ParallelConfig

TOKENIZER_FLAGS = ("vocab_file", "merge_file", "tokenizer_model")


@dataclass(frozen=True, kw_only=True)
class Source:
    """A model to load. `folder`: a run's checkpoints, or one of them. `tokenizer_files` as SavedModel.find has them."""

    folder: Path
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    tokenizer_files: dict[str, str] = field(default_factory=dict)
    max_positions: int | None = None
    """Tokens of a row; None: as many as the model was trained for."""


class Parser(argparse.ArgumentParser):
    """Raises UsageError where argparse would print and exit."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; `{self.prog} --help` lists all flags")


def build_parser() -> Parser:
    parser = Parser(
        prog="megatronapp generate",
        description="Generate text with a checkpoint of the trainer. No model flags: the checkpoint has them.",
        allow_abbrev=False,
    )
    add_source(parser.add_argument_group("Model"), "--checkpoint", "--load")
    _add_prompts(parser.add_argument_group("Prompts"))
    _add_sampling(parser.add_argument_group("Sampling"))
    _add_end(parser.add_argument_group("End"))
    _add_output(parser.add_argument_group("Output"))
    return parser


def add_source(group: Any, *names: str) -> None:
    """Where the model is and how it is split: `source_of` reads it. `names` are the folder's flag."""
    group.add_argument(
        *names, dest="checkpoint", type=Path, required=True, metavar="DIR", help="a run's checkpoints, or one of them"
    )
    group.add_argument("--tensor-model-parallel-size", type=_count, default=1, help="ranks that share each layer")
    group.add_argument("--pipeline-model-parallel-size", type=_count, default=1, help="pipeline stages")
    group.add_argument(
        "--num-virtual-stages-per-pipeline-rank", type=_count, help="chunks per rank of an interleaved pipeline"
    )
    group.add_argument("--max-positions", type=_count, help="tokens of a row; default: what the model was trained for")
    for flag in TOKENIZER_FLAGS:
        name = "--" + flag.replace("_", "-")
        group.add_argument(name, help="for checkpoints that do not hold their tokenizer")


def _add_prompts(group: Any) -> None:
    group.add_argument("--prompt", action="append", default=[], help="may be given several times")
    group.add_argument(
        "--prompts-file", help="one prompt a line, or of a .jsonl an object with `prompt`; - reads standard input"
    )
    group.add_argument("--add-bos", "--add_BOS", action="store_true", help="begin prompts with the token for it")
    group.add_argument("--chat", action="store_true", help="put prompts into the tokenizer's chat template")


def _add_sampling(group: Any) -> None:
    group.add_argument("--temperature", type=float, default=1.0, help="0 takes the likeliest token")
    group.add_argument("--top-k", "--top_k", type=int, default=0, help="draw among the k likeliest; 0: among all")
    group.add_argument("--top-p", "--top_p", type=float, default=1.0, help="draw among the likeliest that sum to this")
    group.add_argument("--top-p-decay", type=float, default=1.0, help="factor of top-p with each token")
    group.add_argument("--top-p-bound", type=float, default=0.0, help="top-p does not decay below")
    group.add_argument("--seed", "--random-seed", type=int, default=0, help="prompt i draws with seed + i")
    group.add_argument("--beam-width", type=int, default=0, help="beam search in place of sampling")
    group.add_argument("--length-penalty", type=float, default=1.0, help="power of a beam's length in its score")
    group.add_argument("--no-newline-after-colon", action="store_true", help="never draw a newline after a colon")


def _add_end(group: Any) -> None:
    group.add_argument(
        "--max-new-tokens", "--tokens-to-generate", type=int, default=64, help="tokens to draw; 0: only score prompts"
    )
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end at this text; several times")
    group.add_argument("--stop-token", action="append", type=int, default=[], metavar="ID", help="end at this token")
    group.add_argument("--ignore-end-of-document", action="store_true", help="go on after the token that ends a text")


def _add_output(group: Any) -> None:
    group.add_argument("--json", action="store_true", help="events as JSON, one a line, with log-probabilities")
    group.add_argument("--prompt-log-probabilities", action="store_true", help="with --json: of the prompts too")
    group.add_argument("--top-candidates", type=int, default=0, metavar="N", help="with --json: the likeliest tokens")
    group.add_argument("--logits", action="store_true", help="with --json: float32, little-endian, in base64")


def _count(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is too small: the least is 1")
    return number


def source_of(options: argparse.Namespace) -> Source:
    """Raises NotFoundError."""
    if not options.checkpoint.is_dir():
        raise NotFoundError(f"{options.checkpoint}: there is no such folder")
    return Source(
        folder=options.checkpoint,
        parallel=ParallelConfig(
            tensor_model_parallel_size=options.tensor_model_parallel_size,
            pipeline_model_parallel_size=options.pipeline_model_parallel_size,
            num_virtual_stages_per_pipeline_rank=options.num_virtual_stages_per_pipeline_rank,
        ),
        tokenizer_files={name: path for name in TOKENIZER_FLAGS if (path := getattr(options, name))},
        max_positions=options.max_positions,
    )


def request_of(options: argparse.Namespace, prompts: Sequence[str]) -> GenerationRequest:
    """Raises UsageError."""
    if not options.json and (options.prompt_log_probabilities or options.top_candidates or options.logits):
        raise UsageError("--prompt-log-probabilities, --top-candidates and --logits need --json")
    return GenerationRequest(
        prompts=tuple(prompts),
        max_new_tokens=options.max_new_tokens,
        sampling=Sampling(
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            top_p_decay=options.top_p_decay,
            top_p_bound=options.top_p_bound,
        ),
        seed=options.seed,
        beam_width=options.beam_width,
        length_penalty=options.length_penalty,
        stop_words=tuple(options.stop),
        stop_tokens=tuple(options.stop_token),
        stop_at_end_of_document=not options.ignore_end_of_document,
        add_bos=options.add_bos,
        chat=options.chat,
        no_newline_after_colon=options.no_newline_after_colon,
        prompt_log_probabilities=options.prompt_log_probabilities,
        top_candidates=options.top_candidates,
        logits=options.logits,
    )


def prompts_of(options: argparse.Namespace) -> list[str]:
    """Those of the command line, then those of the file. Raises UsageError, NotFoundError and DataError."""
    prompts = [*options.prompt, *(_read(options.prompts_file) if options.prompts_file else [])]
    if not prompts:
        raise UsageError("no prompts: give --prompt or --prompts-file")
    return prompts


def _read(name: str) -> list[str]:
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text()
    except FileNotFoundError as error:
        raise NotFoundError(f"--prompts-file {name}: there is no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--prompts-file {name} can't be read: {error}") from error
    lines = [line for line in text.splitlines() if line.strip()]
    if not name.endswith(".jsonl"):
        return lines
    try:
        prompts = [json.loads(line)["prompt"] for line in lines]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise DataError(f"--prompts-file {name}: each line is an object with `prompt`: {error!r}") from error
    if not all(isinstance(prompt, str) for prompt in prompts):
        raise DataError(f"--prompts-file {name}: a prompt is text")
    return prompts
