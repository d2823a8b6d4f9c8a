from pathlib import Path

from megatronapp.trainer import reference

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / reference.DOCUMENT


def test_the_documented_flags_are_those_of_the_parser() -> None:
    document = DOCUMENT.read_text()

    assert reference.rewrite(document) == document, "run `python -m megatronapp.trainer.reference`"


def test_the_page_of_megatron_lms_flags_is_made_from_the_table() -> None:
    page = (ROOT / reference.FOREIGN).read_text()

    assert page == reference.foreign_flags_page(), "run `python -m megatronapp.trainer.reference`"
