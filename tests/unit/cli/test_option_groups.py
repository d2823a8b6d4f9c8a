"""Commands whose options are the fields of dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from megatronapp.cli.option_groups import command


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Of both.

    Nothing of this is shown.
    """

    often: Annotated[int, typer.Option(help="how often")] = 1


@dataclass(frozen=True, kw_only=True)
class Own(Shared):
    """Of one."""

    loud: Annotated[bool, typer.Option("--loud", help="aloud")] = False


def say(options: Own) -> None:
    """Says what it was asked."""
    print(options)


def said(*words: str) -> str:
    app = typer.Typer()
    app.command()(command(Own, say))
    return CliRunner().invoke(app, words).output


def test_options_that_are_given_and_defaults_of_the_others_arrive_as_one_object() -> None:
    assert said("--often", "3") == "Own(often=3, loud=False)\n"
    assert said("--loud") == "Own(often=1, loud=True)\n"


def test_help_shows_each_option_under_the_heading_of_its_class() -> None:
    shown = said("--help")

    assert "Says what it was asked." in shown
    assert shown.index("Of both") < shown.index("--often") < shown.index("Of one") < shown.index("--loud")
    assert "Nothing of this" not in shown
