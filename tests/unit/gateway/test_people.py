"""Named tokens: who they are, which lines are none, and that a file that changes is read again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from megatronapp.core.auth import Role
from megatronapp.core.errors import ConfigError
from megatronapp.gateway.people import MAX_NAME, NamedTokens, Person, clean_name

ANN, BOB = "a" * 20, "b" * 20


def people_file(folder: Path, text: str) -> Path:
    path = folder / "people"
    path.write_text(text)
    return path


def test_a_token_says_who_somebody_is(tmp_path: Path) -> None:
    people = NamedTokens(people_file(tmp_path, f"# name role token\nann operator {ANN}\n\nbob viewer {BOB}\n"))

    assert people.find(ANN) == Person("ann", Role.OPERATOR)
    assert people.find(BOB) == Person("bob", Role.VIEWER)
    assert people.find("c" * 20) is None
    assert people.find("") is None


def test_a_token_can_be_withdrawn_without_a_restart(tmp_path: Path) -> None:
    path = people_file(tmp_path, f"ann operator {ANN}\n")
    people = NamedTokens(path)

    path.write_text(f"bob viewer {BOB}\n")
    os.utime(path, (1, 1))

    assert (people.find(ANN), people.find(BOB)) == (None, Person("bob", Role.VIEWER))


def test_a_file_that_becomes_unreadable_signs_nobody_out(tmp_path: Path) -> None:
    path = people_file(tmp_path, f"ann operator {ANN}\n")
    people = NamedTokens(path)

    path.write_text("half a li")

    assert people.find(ANN) == Person("ann", Role.OPERATOR)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ann operator", "name role token"),
        (f"ann chief {ANN}", "viewer or operator"),
        ("ann operator short", "16 characters"),
        (f"ann operator {ANN}\nbob viewer {ANN}", "line 2: the token is another person's too"),
    ],
)
def test_a_line_that_is_none_is_named_and_its_token_is_not_repeated(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        NamedTokens(people_file(tmp_path, text))

    assert reason in str(refused.value)
    assert ANN not in str(refused.value)


def test_a_file_that_is_not_there_prevents_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        NamedTokens(tmp_path / "nowhere")


def test_a_name_holds_nothing_that_can_not_be_printed() -> None:
    assert clean_name("  Ann\x00\n\u202e Lee ") == "Ann Lee"
    assert len(clean_name("x" * 1_000)) == MAX_NAME
