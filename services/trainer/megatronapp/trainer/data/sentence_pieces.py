"""SentencePiece's tokenizers: Llama 2's and others' tokenizer.model, and T5's spiece.model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from megatronapp.core.errors import ConfigError, DataError, UsageError
from megatronapp.trainer.data.token_files import HALF, NO_TEMPLATE, identity, line_of, must_exist, sha256_of


class SentencePieceTokenizer:
    """A SentencePiece tokenizer.model. `begins`: each text begins with the token for it, as with Llama's."""

    def __init__(self, file: Path, *, begins: bool) -> None:
        from sentencepiece import SentencePieceProcessor

        must_exist(file, "--tokenizer-model")
        self._processor = SentencePieceProcessor()
        content = file.read_bytes()
        try:
            self._processor.LoadFromSerializedProto(content)
        except (RuntimeError, ValueError) as error:
            raise ConfigError(f"{file} is no SentencePiece model: {line_of(error)}") from error
        self._begins = begins
        self.vocab_size: int = self._processor.vocab_size()
        self.eod: int = self._processor.eos_id()
        if self.eod < 0:
            raise ConfigError(f"{file} has no token that ends a document")
        bos: int = self._processor.bos_id()
        self.bos = self.eod if bos < 0 else bos
        self.files: Mapping[str, bytes] = {"tokenizer.model": content}
        self.sha256 = sha256_of([content])
        self.unique_identifiers = identity("SentencePieceTokenizer", file, begins)

    def tokenize(self, text: str) -> list[int]:
        try:
            ids: list[int] = self._processor.encode(text)
        except (UnicodeEncodeError, TypeError, RuntimeError) as error:
            raise DataError(HALF) from error
        return [self.bos, *ids] if self._begins else ids

    def detokenize(self, ids: Sequence[int]) -> str:
        text: str = self._processor.decode(list(ids))
        return text

    def piece(self, token: int) -> str:
        return str(self._processor.id_to_piece(token))

    def chat(self, said: str) -> list[int]:
        raise UsageError(NO_TEMPLATE)


class T5Tokenizer(SentencePieceTokenizer):
    """T5's, with the tokens that mark what was cut out: mT5's spiece.model has them, for T5's they follow its pieces.
    The first one, <extra_id_0>, is the last of them. A text of the decoder begins with the token for padding, which so
    can't be told from padding: `pad` is not there, as megatron-core's dataset then has one that is no token."""

    def __init__(self, file: Path, extra_ids: int) -> None:
        super().__init__(file, begins=False)
        if (start := self._processor.pad_id()) < 0:
            raise ConfigError(
                f"{file} has no token for padding, with which T5's decoder begins: give a T5's spiece.model"
            )
        self._pieces: int = self._processor.vocab_size()
        own = [self._own(number) for number in range(extra_ids)]
        marks = range(self._pieces + extra_ids - 1, self._pieces - 1, -1) if None in own else own
        self.additional_special_tokens_ids = [int(mark) for mark in marks if mark is not None]
        self.vocab_size = max(self._pieces, *(mark + 1 for mark in self.additional_special_tokens_ids))
        self.bos, self.eos = start, self.eod
        self.cls = self.sep = start
        self.mask = self._processor.unk_id()
        self.inv_vocab = {token: self.piece(token) for token in range(self.vocab_size)}
        self.files = {"spiece.model": self.files["tokenizer.model"]}
        self.unique_identifiers = identity("T5Tokenizer", file, extra_ids)

    def _own(self, number: int) -> int | None:
        """That mark, where the file has it."""
        for spelling in (f"<extra_id_{number}>", f"\u2581<extra_id_{number}>"):
            token: int = self._processor.piece_to_id(spelling)
            if token != self._processor.unk_id():
                return token
        return None

    def piece(self, token: int) -> str:
        return super().piece(token) if token < self._pieces else f"<extra_id_{self.vocab_size - 1 - token}>"

    def detokenize(self, ids: Sequence[int]) -> str:
        return super().detokenize([token for token in ids if token < self._pieces])
