from pathlib import Path

from megatronapp.trainer import reference

DOCUMENT = Path(__file__).resolve().parents[3] / reference.DOCUMENT


def test_the_documented_flags_are_those_of_the_parser() -> None:
    document = DOCUMENT.read_text()

    assert reference.rewrite(document) == document, "run `python -m megatronapp.trainer.reference`"
