"""Make corpus.jsonl and the tokenizers beside it from Debian's package dict-devil.

    apt-get download dict-devil && dpkg -x dict-devil_*.deb dict-devil
    python examples/data/make_corpus.py dict-devil/usr/share/dictd

Every entry of the dictionary becomes one line. The result does not depend on when or where it is made.
"""

from __future__ import annotations

import gzip
import json
import string
import sys
from collections import Counter
from pathlib import Path

from tokenizers import ByteLevelBPETokenizer
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

HERE = Path(__file__).parent
END_OF_DOCUMENT = "<|endoftext|>"
VOCAB_SIZE = 2048
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ENDINGS = 300
DICT_DIGITS = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"


def entries(folder: Path) -> list[str]:
    """The dictionary's entries, in its order; the packaging's own entries (00-database-…) are left out."""
    text = gzip.decompress((folder / "devil.dict.dz").read_bytes())
    spans = set()
    for line in (folder / "devil.index").read_text().splitlines():
        word, start, length = line.split("\t")
        if word.strip() and not word.startswith("00"):
            spans.add((_number(start), _number(length)))
    return [text[start : start + length].decode().strip() for start, length in sorted(spans)]


def _number(digits: str) -> int:
    """A number of a dictd index, base 64."""
    value = 0
    for digit in digits:
        value = value * 64 + DICT_DIGITS.index(digit)
    return value


def word_pieces(texts: list[str]) -> list[str]:
    """BERT's special tokens, every character alone and within a word, the most frequent endings, then whole words.

    Not by a trainer of the tokenizers library, which breaks ties between pieces by chance.
    """
    normalized = (BertNormalizer(lowercase=True).normalize_str(text) for text in texts)
    words = Counter(word for text in normalized for word, _ in BertPreTokenizer().pre_tokenize_str(text))
    characters = sorted({character for word in words for character in word})
    endings: Counter[str] = Counter()
    for word, count in words.items():
        endings.update({f"##{word[-length:]}": count for length in (2, 3, 4) if length < len(word)})
    pieces = [*SPECIAL, *characters, *(f"##{character}" for character in characters), *_frequent(endings)[:ENDINGS]]
    return list(dict.fromkeys([*pieces, *_frequent(words)]))[:VOCAB_SIZE]


def _frequent(counts: Counter[str]) -> list[str]:
    return sorted(counts, key=lambda piece: (-counts[piece], piece))


def main(folder: Path) -> None:
    texts = entries(folder)
    with (HERE / "corpus.jsonl").open("w") as file:
        file.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts, vocab_size=VOCAB_SIZE, special_tokens=[END_OF_DOCUMENT], show_progress=False)
    tokenizer.save_model(str(HERE))
    tokenizer.save(str(HERE / "tokenizer.json"), pretty=False)
    (HERE / "vocab.txt").write_text("".join(f"{piece}\n" for piece in word_pieces(texts)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
