"""Files that come with models and data: weights, checkpoints, tokenizers, texts, recordings of MegaScope."""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import numpy as np

from megatronapp.cli.pipeline.simulate import _read_csv
from megatronapp.core.scope.captures import Floats
from megatronapp.gateway.people import NamedTokens
from megatronapp.gateway.scope.recordings.format import read_index
from megatronapp.scope.cache import Cache, load_npz
from megatronapp.trainer import checkpoint_folder, checkpoint_verify
from megatronapp.trainer.convert import core_to_hf, hf_to_core
from megatronapp.trainer.convert.arguments import Options
from megatronapp.trainer.data import chat, indexed, preprocess
from megatronapp.trainer.data.tokenizers import make_tokenizer
from megatronapp.trainer.generate.arguments import prompts_of
from tests.attack.inputs import as_json, damaged, mutated
from tests.attack.makers import Make, damage, of_bytes, of_folder, of_json
from tests.support.hugging_face import write_model, write_sentencepiece
from tests.unit.gateway.scope.recordings.test_format import WHOLE

Read = Callable[[Path], object]
WEIGHTS = {"chat template": 0.05}
"""A process of its own reads each, and an endless one takes its whole second: with the weight of the others a good part
of an attack's time would be theirs."""
TEXTS = b'{"text": "one two"}\n{"text": "three", "meta": {"a": [1]}}\n{"text": "\\u00e9 ?"}\n'
VOCABULARY = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\none\ntwo\n##s\n"
CHAT = {
    "bos_token": {"content": "<s>"},
    "eos_token": "</s>",
    "chat_template": "{% for turn in messages %}{{ turn.role }}: {{ turn.content | trim }}{% endfor %}",
}
TEMPLATES = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 'x' * 10 ** 10 }}",
    "{{ 9 ** 99999999 }}",
    "{{ [0] * 10 ** 9 }}",
    "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '{:>999999999}'.format(1) }}",
    "{{ 'x' | center(10 ** 9) }}",
    "{% for a in messages %}{{ loop.index ** 10 ** 8 }}{% endfor %}",
    "{{ raise_exception('\ud800') }}",
    "{{ messages[0].nothing.of.this }}",
    "{% set x = namespace(a=[]) %}{{ x.a.append(1) }}",
)


def model_readers(good: Path) -> list[tuple[str, Make, Read]]:
    """Name, how a hostile input is made, and what reads it."""
    good.mkdir(parents=True)
    hugging_face = write_model(good / "hugging-face")
    hf_to_core.convert(Options(source=hugging_face, target=good / "core"))
    return [
        ("model of Hugging Face", of_folder(hugging_face, _model_file), _to_core),
        ("checkpoint", of_folder(good / "core", damage), _to_hugging_face),
        ("checkpoint, verified", of_folder(good / "core", damage), _verify),
        *_tokenizers(good),
        ("chat template", _template, _render),
        ("text to preprocess", _lines, _preprocess),
        ("prompts", _lines, _prompts),
        ("index of tokens", of_folder(_tokens(good / "tokens"), damage), lambda p: indexed.read_index(str(p / "t"))),
        ("schedule", of_bytes("s.csv", b"0F0,0F1,0B0,0B1\n,1F0,1B0\n"), lambda place: _read_csv(place / "s.csv")),
        ("people", of_bytes("people", b"ann operator 0123456789abcdef\n# b\n"), lambda p: NamedTokens(p / "people")),
        ("recording of MegaScope", of_bytes("r.mscope", WHOLE), _recording),
        ("cache of MegaScope", of_bytes("c.npz", _cache()), lambda place: load_npz(place / "c.npz")),
    ]


def _model_file(chance: random.Random, file: Path) -> None:
    """Damaged bytes, other JSON, or a header of safetensors that says something else."""
    data = file.read_bytes()
    if file.suffix == ".json" and chance.random() < 0.8:
        file.write_bytes(as_json(mutated(chance, json.loads(data), chance.choice((0.01, 0.05, 0.3)))))
    elif file.suffix == ".safetensors" and chance.random() < 0.6:
        size = int.from_bytes(data[:8], "little")
        header = as_json(mutated(chance, json.loads(data[8 : 8 + size]), chance.choice((0.002, 0.02, 0.2))))
        length = len(header) if chance.random() < 0.9 else chance.choice((0, 2**31, 2**63, 2**64 - 1))
        file.write_bytes(length.to_bytes(8, "little") + header + data[8 + size :])
    else:
        file.write_bytes(damaged(chance, data))


def _to_core(place: Path) -> None:
    hf_to_core.convert(Options(source=place, target=_fresh(place)))


def _to_hugging_face(place: Path) -> None:
    core_to_hf.convert(Options(source=place, target=_fresh(place)))


def _fresh(place: Path) -> Path:
    target = place.with_name("converted")
    shutil.rmtree(target, ignore_errors=True)
    return target


def _verify(place: Path) -> None:
    list(checkpoint_verify.faults(checkpoint_folder.find_complete(place)))


def _tokenizers(good: Path) -> list[tuple[str, Make, Read]]:
    folder = good / "sentencepiece"
    folder.mkdir()
    write_sentencepiece(folder)
    file = json.loads((good / "hugging-face/tokenizer.json").read_bytes())

    def of(kind: str, **files: str) -> Read:
        def read(place: Path) -> None:
            given = {flag: str(place / name) for flag, name in files.items()}
            tokenizer = make_tokenizer(kind, **given)  # type: ignore[arg-type]
            tokenizer.detokenize(tokenizer.tokenize("one two?"))
            for token in (0, tokenizer.vocab_size - 1):
                tokenizer.piece(token)

        return read

    return [
        (
            "tokenizer.json",
            of_json("tokenizer.json", file),
            of("HuggingFaceTokenizer", tokenizer_model="tokenizer.json"),
        ),
        (
            "SentencePiece",
            of_bytes("t.model", (folder / "tokenizer.model").read_bytes()),
            of("SentencePieceTokenizer", tokenizer_model="t.model"),
        ),
        ("vocab.txt", of_bytes("vocab.txt", VOCABULARY), of("BertWordPieceLowerCase", vocab_file="vocab.txt")),
    ]


def _template(chance: random.Random, place: Path) -> None:
    if chance.random() < 0.05:  # some take all the time that they are given
        of_json("c.json", CHAT | {"chat_template": chance.choice(TEMPLATES)})(chance, place)
    elif chance.random() < 0.5:
        template = damaged(chance, CHAT["chat_template"].encode()).decode("utf-8", "replace")  # type: ignore[attr-defined]
        (place / "c.json").write_bytes(as_json(CHAT | {"chat_template": template}))
    else:
        of_json("c.json", CHAT)(chance, place)


def _render(place: Path) -> None:
    chat.rendered((place / "c.json").read_bytes(), [{"role": "user", "content": "one"}])


def _lines(chance: random.Random, place: Path) -> None:
    lines = TEXTS.replace(b'"text"', b'"prompt"') if chance.random() < 0.5 else TEXTS
    if chance.random() < 0.5:
        of_bytes("t.jsonl", lines)(chance, place)
    else:
        of_json("t.jsonl", {"text": "one", "prompt": "two"})(chance, place)


def _preprocess(place: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        files = ("--input", str(place / "t.jsonl"), "--output-prefix", str(place / "out/t"))
        preprocess.main([*files, "--tokenizer-type", "ByteTokenizer", "--workers", "1", "--append-eod"])


def _prompts(place: Path) -> None:
    prompts_of(Namespace(prompt=[], prompts_file=str(place / "t.jsonl")))


def _tokens(folder: Path) -> Path:
    with indexed.DocumentWriter(folder / "t", 256) as writer:
        writer.add(np.arange(5, dtype=np.int32), np.arange(3, dtype=np.int32))
        writer.add(np.arange(2, dtype=np.int32))
        writer.commit()
    return folder


def _recording(place: Path) -> None:
    with (place / "r.mscope").open("rb") as file:
        read_index(file)


def _cache() -> bytes:
    values: dict[str, Floats] = {"blocks.0.hook_resid_pre": np.zeros((1, 2, 4), np.float32)}
    file = io.BytesIO()
    Cache(values, [[1, 2]]).save(file)  # type: ignore[arg-type]
    return file.getvalue()
