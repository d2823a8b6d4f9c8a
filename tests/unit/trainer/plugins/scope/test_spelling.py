"""Ids in a picture are spelled, as far as they are any."""

import numpy as np
import pytest

from megatronapp.core.scope.frame import Section
from megatronapp.core.scope.quantize import Values
from megatronapp.core.scope.results import Partial
from megatronapp.core.scope.token_texts import unpack_texts
from megatronapp.trainer.data.tokenizers import ByteTokenizer, NullTokenizer
from megatronapp.trainer.plugins.scope.spelling import Speller


def spelled(*ids: float) -> dict[int, str]:
    return unpack_texts(Speller(ByteTokenizer())(Values(np.array([ids], np.float32)))[Section.TOKEN_TEXTS])


def test_each_token_is_spelled_once_in_the_order_of_the_text() -> None:
    assert list(spelled(72, 105, 32, 72).items()) == [(72, "H"), (105, "i"), (32, " ")]


@pytest.mark.parametrize(("token", "piece"), [(0xC3, "<0xC3>"), (256, "<eod>"), (3, "<0x03>"), (10, "\n")])
def test_what_is_no_text_by_itself_goes_by_its_piece(token: int, piece: str) -> None:
    assert spelled(token) == {token: piece}


def test_what_is_no_id_is_left_out() -> None:
    assert spelled(np.nan, np.inf, -1, 257, 65) == {65: "A"}


def test_a_token_is_spelled_as_behind_others() -> None:
    texts = Speller(NullTokenizer(10))(Values(np.array([3], np.float32)))

    assert unpack_texts(texts[Section.TOKEN_TEXTS]) == {3: " 3"}


def test_what_holds_no_ids_is_not_spelled() -> None:
    assert Speller(ByteTokenizer())(Partial(np.zeros((1, 1)))) == {}
