"""Tokenizers, read from local files only; nothing is ever fetched.

All of them have what megatron-core's datasets ask for: `vocab_size`, `eod` and `unique_identifiers`, which names the
tokenizer in the key of a cached index.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, get_args, get_type_hints

from tokenizers import ByteLevelBPETokenizer
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from megatronapp.core.errors import ConfigError, DataError, UsageError
from megatronapp.trainer.config import DataConfig
from megatronapp.trainer.data import tiktoken_file
from megatronapp.trainer.data.chat import rendered
from megatronapp.trainer.data.token_files import HALF, NO_TEMPLATE, identity, line_of, must_exist, sha256_of

END_OF_DOCUMENT = "<|endoftext|>"
END_OF_DOCUMENT_NAMES = (END_OF_DOCUMENT, "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "[SEP]")
"""How tokenizer files spell the end of a document, tried in this order when no tokenizer_config.json says it."""


REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""What bytes that are no text are shown as."""
BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""What a vocab.txt must have."""
SETTINGS = "tokenizer_config.json"
FILE_FLAGS = {
    "vocab.json": "vocab_file",
    "vocab.txt": "vocab_file",
    "merges.txt": "merge_file",
    "tokenizer.json": "tokenizer_model",
    "tokenizer.model": "tokenizer_model",
    "spiece.model": "tokenizer_model",
}
"""The files that a tokenizer is read from, and which setting gives each one's path."""


class Tokenizer(Protocol):
    """Text to token ids and back. Ids lie in [0, vocab_size); `eod` ends a document. `sha256` is of the files it was
    read from, wherever they lie; empty without files. `files` is what a checkpoint keeps of them, by name."""

    unique_identifiers: OrderedDict[str, Any]
    sha256: str
    files: Mapping[str, bytes]

    @property
    def vocab_size(self) -> int: ...

    @property
    def eod(self) -> int: ...

    @property
    def bos(self) -> int:
        """What begins a text; `eod`, which ends the one before, for a tokenizer without a token of its own for it."""
        ...

    def tokenize(self, text: str) -> list[int]: ...

    def detokenize(self, ids: Sequence[int]) -> str: ...

    def piece(self, token: int) -> str:
        """How the vocabulary spells one token, also where it is no text by itself."""
        ...

    def chat(self, said: str) -> list[int]:
        """What a user says, with the opening of the answer, by the chat template. Raises UsageError without one."""
        ...


class ByteTokenizer:
    """One token a byte of UTF-8, and one that ends a document."""

    vocab_size = 257
    eod = bos = 256
    sha256 = ""
    files: Mapping[str, bytes] = MappingProxyType({})

    def __init__(self) -> None:
        self.unique_identifiers = identity("ByteTokenizer")

    def tokenize(self, text: str) -> list[int]:
        try:
            return list(text.encode())
        except UnicodeEncodeError as error:
            raise DataError(HALF) from error

    def detokenize(self, ids: Sequence[int]) -> str:
        return bytes(token for token in ids if token != self.eod).decode(errors="replace")

    def piece(self, token: int) -> str:
        return "<eod>" if token == self.eod else f"<0x{token:02X}>"

    def chat(self, said: str) -> list[int]:
        raise UsageError(NO_TEMPLATE)


class NullTokenizer:
    """Text that is token ids already, parted by blanks: ids from 0 to `size` - 1; `size` itself ends a document."""

    sha256 = ""
    files: Mapping[str, bytes] = MappingProxyType({})

    def __init__(self, size: int) -> None:
        if size < 1:
            raise UsageError("NullTokenizer needs --vocab-size, the number of token ids that the text uses")
        self.eod = self.bos = size
        self.vocab_size = size + 1
        self.unique_identifiers = identity("NullTokenizer", size)

    def tokenize(self, text: str) -> list[int]:
        """Raises DataError on a word that is no id of the vocabulary."""
        try:
            ids = [int(word) for word in text.split()]
        except ValueError as error:
            raise DataError(f"NullTokenizer reads token ids, not words: {error}") from error
        outside = [token for token in ids if not 0 <= token < self.eod]
        if outside:
            raise DataError(f"token id {outside[0]} lies outside of --vocab-size {self.eod}")
        return ids

    def detokenize(self, ids: Sequence[int]) -> str:
        return " ".join(str(token) for token in ids if token != self.eod)

    def piece(self, token: int) -> str:
        return str(token)

    def chat(self, said: str) -> list[int]:
        raise UsageError(NO_TEMPLATE)


class _FastTokenizer:
    """What the tokenizers of the `tokenizers` library have in common."""

    def __init__(self, backend: Any, eod: int, bos: int, files: Mapping[str, bytes]) -> None:
        self._backend = backend
        self.eod = eod
        self.bos = bos
        self.files = files
        self.sha256 = sha256_of([content for name, content in files.items() if name != SETTINGS])
        # Ids may have gaps, so the count of entries is not enough: a model must have room for the largest id.
        self.vocab_size: int = max(backend.get_vocab(with_added_tokens=True).values()) + 1

    def tokenize(self, text: str) -> list[int]:
        return self._encode(text)

    def _encode(self, text: str, **options: bool) -> list[int]:
        try:
            ids: list[int] = self._backend.encode(text, **options).ids
        except TypeError as error:  # as the library takes no text in which half a character is
            raise DataError(HALF) from error
        except Exception as error:  # a word that the vocabulary lacks, where it has no token for such
            raise DataError(f"the tokenizer can't split the text: {line_of(error)}") from error
        return ids

    def detokenize(self, ids: Sequence[int]) -> str:
        text: str = self._backend.decode(list(ids), skip_special_tokens=False)
        return text

    def piece(self, token: int) -> str:
        return str(self._backend.id_to_token(token) or "")

    def chat(self, said: str) -> list[int]:
        text = rendered(self.files.get(SETTINGS, b""), [{"role": "user", "content": said}])
        return self._encode(text, add_special_tokens=False)  # the template has its own


class GPT2BPETokenizer(_FastTokenizer):
    """GPT-2's byte-level BPE from its vocab.json and merges.txt."""

    def __init__(self, vocab_file: Path, merge_file: Path) -> None:
        for path, flag in ((vocab_file, "--vocab-file"), (merge_file, "--merge-file")):
            must_exist(path, flag)
        try:
            backend = ByteLevelBPETokenizer(str(vocab_file), str(merge_file))
        except Exception as error:
            raise ConfigError(f"{vocab_file} and {merge_file} are no GPT-2 vocabulary: {line_of(error)}") from error
        eod = backend.token_to_id(END_OF_DOCUMENT)
        if eod is None:
            raise ConfigError(f"{vocab_file} has no token {END_OF_DOCUMENT}, which ends a document")
        files = {"vocab.json": vocab_file.read_bytes(), "merges.txt": merge_file.read_bytes()}
        super().__init__(backend, eod, eod, files)
        self.unique_identifiers = identity("GPT2BPETokenizer", vocab_file, merge_file)


class HuggingFaceTokenizer(_FastTokenizer):
    """Any Hugging Face tokenizer.json; the path of the file or of the folder that holds it."""

    def __init__(self, path: Path) -> None:
        file = path / "tokenizer.json" if path.is_dir() else path
        must_exist(file, "--tokenizer-model")
        try:
            backend = FastTokenizer.from_file(str(file))
        except Exception as error:
            raise ConfigError(f"{file} is no tokenizer.json: {line_of(error)}") from error
        files = {"tokenizer.json": file.read_bytes()}
        settings = file.with_name(SETTINGS)
        if settings.is_file():
            files[SETTINGS] = settings.read_bytes()
        declared = _declared(files.get(SETTINGS, b"{}"))
        eod = _end_of_document(backend, file, declared.get("eos_token"))
        begins = backend.token_to_id(declared["bos_token"]) if "bos_token" in declared else None
        super().__init__(backend, eod, eod if begins is None else begins, files)
        self.unique_identifiers = identity("HuggingFaceTokenizer", file)


class TikTokenizer(_FastTokenizer):
    """Llama 3's tokenizer.model. Special tokens written in a text are text."""

    def __init__(self, file: Path) -> None:
        must_exist(file, "--tokenizer-model")
        content = file.read_bytes()
        backend = tiktoken_file.backend(content, file)
        eod, bos = (backend.token_to_id(name) for name in (tiktoken_file.END, tiktoken_file.BEGIN))
        super().__init__(backend, eod, bos, {"tokenizer.model": content})
        self.unique_identifiers = identity("TikTokenizer", file)


class BertWordPieceTokenizer(_FastTokenizer):
    """BERT's word pieces from its vocab.txt, one to a line. As in Megatron-LM, [BOS] and [EOS] follow the vocabulary,
    then `extra_ids` tokens that stand for no word. Special tokens written in a text are text."""

    def __init__(self, vocab_file: Path, *, lowercase: bool, extra_ids: int = 0) -> None:
        ids = _word_pieces(vocab_file)
        missing = [token for token in BERT_TOKENS if token not in ids]
        if missing or ids["[PAD]"] != 0:
            what = f"has no token {missing[0]}" if missing else "does not begin with [PAD]"
            raise ConfigError(f"--vocab-file {vocab_file} {what}: give the vocab.txt of a BERT")
        extra = [f"<extra_id_{number}>" for number in range(extra_ids)]
        for token in ("[BOS]", "[EOS]", *extra):
            ids.setdefault(token, len(ids))
        backend = FastTokenizer(WordPiece(ids, unk_token="[UNK]"))  # noqa: S106
        backend.normalizer = BertNormalizer(lowercase=lowercase)
        backend.pre_tokenizer = BertPreTokenizer()
        backend.decoder = WordPieceDecoder()
        self.pad, self.cls, self.sep, self.mask = (ids[token] for token in ("[PAD]", "[CLS]", "[SEP]", "[MASK]"))
        self.eos = ids["[EOS]"]
        self.additional_special_tokens_ids = [ids[token] for token in extra]
        self.inv_vocab = {number: token for token, number in ids.items()}
        super().__init__(backend, self.sep, ids["[BOS]"], {"vocab.txt": vocab_file.read_bytes()})
        self.unique_identifiers = identity("BertWordPieceTokenizer", vocab_file, lowercase, extra_ids)


def _word_pieces(vocab_file: Path) -> dict[str, int]:
    """By piece its id, which is its line. Raises ConfigError."""
    must_exist(vocab_file, "--vocab-file")
    try:
        pieces = vocab_file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"--vocab-file {vocab_file} is no text: give the vocab.txt of a BERT") from error
    ids = {piece.rstrip("\r"): number for number, piece in enumerate(pieces)}
    if len(ids) < len(pieces):
        raise ConfigError(f"--vocab-file {vocab_file} has a piece twice: give the vocab.txt of a BERT")
    return ids


def _declared(settings: bytes) -> dict[str, str]:
    """The special tokens that a tokenizer_config.json names."""
    try:
        named = {role: json.loads(settings).get(role) for role in ("eos_token", "bos_token")}
        texts = {role: token["content"] if isinstance(token, dict) else token for role, token in named.items()}
        declared = {role: str(text) for role, text in texts.items() if text is not None}
        "".join(declared.values()).encode()  # the library takes no half of a character
    except (ValueError, AttributeError, LookupError, RecursionError) as error:
        raise ConfigError(f"the {SETTINGS} beside the tokenizer can't be read: {error!r}") from error
    return declared


def _end_of_document(backend: Any, file: Path, declared: str | None) -> int:
    names = [*([declared] if declared else ()), *END_OF_DOCUMENT_NAMES]
    for name in names:
        token: int | None = backend.token_to_id(name)
        if token is not None:
            return token
    raise ConfigError(
        f"{file} has no token that ends a document (looked for {', '.join(names)}); "
        "put a tokenizer_config.json with eos_token beside it"
    )


TOKENIZER_TYPES: tuple[str, ...] = get_args(get_type_hints(DataConfig)["tokenizer_type"])


def make_tokenizer(
    tokenizer_type: str,
    *,
    vocab_file: str | None = None,
    merge_file: str | None = None,
    tokenizer_model: str | None = None,
    vocab_size: int | None = None,
    vocab_extra_ids: int = 0,
) -> Tokenizer:
    """The tokenizer of that type. Raises UsageError for a missing option and ConfigError for a broken file."""
    match tokenizer_type:
        case "GPT2BPETokenizer":
            if vocab_file is None or merge_file is None:
                raise UsageError("GPT2BPETokenizer needs --vocab-file and --merge-file")
            return GPT2BPETokenizer(Path(vocab_file), Path(merge_file))
        case "HuggingFaceTokenizer":
            return HuggingFaceTokenizer(_path(tokenizer_type, tokenizer_model, "a tokenizer.json"))
        case "SentencePieceTokenizer" | "Llama2Tokenizer":
            from megatronapp.trainer.data import sentence_pieces

            file = _path(tokenizer_type, tokenizer_model, "a tokenizer.model")
            if tokenizer_type == "SentencePieceTokenizer" and vocab_extra_ids:
                return sentence_pieces.T5Tokenizer(file, vocab_extra_ids)
            return sentence_pieces.SentencePieceTokenizer(file, begins=tokenizer_type == "Llama2Tokenizer")
        case "TikTokenizer":
            return TikTokenizer(_path(tokenizer_type, tokenizer_model, "Llama 3's tokenizer.model"))
        case "BertWordPieceLowerCase" | "BertWordPieceCase":
            if vocab_file is None:
                raise UsageError(f"{tokenizer_type} needs --vocab-file, the vocab.txt of a BERT")
            lowercase = tokenizer_type == "BertWordPieceLowerCase"
            return BertWordPieceTokenizer(Path(vocab_file), lowercase=lowercase, extra_ids=vocab_extra_ids)
        case "ByteTokenizer":
            return ByteTokenizer()
        case "NullTokenizer":
            return NullTokenizer(vocab_size or 0)
    raise UsageError(f"--tokenizer-type {tokenizer_type} is not known; there are {', '.join(TOKENIZER_TYPES)}")


def _path(tokenizer_type: str, tokenizer_model: str | None, what: str) -> Path:
    if tokenizer_model is None:
        raise UsageError(f"{tokenizer_type} needs --tokenizer-model, the path of {what}")
    return Path(tokenizer_model)


def build_tokenizer(config: DataConfig) -> Tokenizer:
    """The tokenizer that the flags name. Raises UsageError and ConfigError."""
    return make_tokenizer(
        config.tokenizer_type,
        vocab_file=config.vocab_file,
        merge_file=config.merge_file,
        tokenizer_model=config.tokenizer_model,
        vocab_size=config.vocab_size,
        vocab_extra_ids=config.vocab_extra_ids,
    )
