"""Text into sentences, by rules and without a model: for BERT, whose samples are of sentences that follow each other.

A sentence ends at a blank line, after 。！？, and after . ! ? (with what closes behind them) where blanks and something
that can begin a sentence follow; not after an abbreviation or an initial.
"""

from __future__ import annotations

import re

_END = re.compile(r"""[.!?…]+["'”’»)\]]*(?=\s+["'“‘«(\[]*[^\W_a-zß-ÿ])|[。！？]+[」』”’]*|\n\s*\n""")
_ABBREVIATIONS = frozenset(
    """mr mrs ms dr prof rev hon gen col capt lt sgt st sr jr fig eq no nos vol vols ch sec art pp vs cf e.g i.e viz etc
    al approx dept est inc ltd co corp jan feb mar apr jun jul aug sep sept oct nov dec""".split()  # noqa: SIM905
)
_WORD_BEFORE = re.compile(r"[\w.]+$")


def split_sentences(text: str) -> list[str]:
    """The sentences of a text in their order, without blanks around them; together they are all of it but for these."""
    sentences, start = [], 0
    for end in _END.finditer(text):
        if not _is_abbreviation(text, start, end):
            sentences.append(text[start : end.end()])
            start = end.end()
    sentences.append(text[start:])
    return [sentence.strip() for sentence in sentences if sentence.strip()]


def _is_abbreviation(text: str, start: int, end: re.Match[str]) -> bool:
    """Whether the full stop belongs to the word before it. Looks no further back than the longest one could be."""
    if end[0] != ".":
        return False
    before = _WORD_BEFORE.search(text[max(start, end.start() - 12) : end.start()])
    word = before[0] if before else ""
    return word.lower() in _ABBREVIATIONS or (len(word) == 1 and word.isalpha() and word.isupper())
