"""MegaScope's own flags turn the plug-in on, and the log says where the page is; no port is opened for them."""

from __future__ import annotations

import argparse

import pytest
from structlog.testing import capture_logs

from megatronapp.core.errors import UsageError
from megatronapp.trainer.environment import GATEWAY_ADDRESS
from megatronapp.trainer.plugins.scope import flags


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    flags.add_flags(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ((), False),
        (("--scope",), True),
        (("--enable-ws-server",), True),
        (("--training-ws-port", "5656"), True),
    ],
)
def test_any_of_them_turns_it_on(words: tuple[str, ...], wanted: bool) -> None:
    args = parsed(*words)

    flags.check(args)

    assert flags.wanted(args) is wanted


@pytest.mark.parametrize(
    "words", [("--training-ws-port", "0"), ("--training-ws-port", "70000"), ("--scope-sae-dir", "saes")]
)
def test_what_makes_no_sense_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        flags.check(parsed(*words))


def test_the_log_says_where_the_page_is_and_what_it_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GATEWAY_ADDRESS, "gateway:7602")

    with capture_logs() as logs:
        flags.report_where(parsed("--enable-ws-server", "--training-ws-port", "5656"))

    [told] = logs
    assert told["gateway"] == "gateway:7602"
    assert told["page"].startswith("/jobs/<run>/scope")
    assert told["instead_of"] == "--enable-ws-server, --training-ws-port"


def test_without_a_gateway_the_log_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(GATEWAY_ADDRESS, raising=False)

    with capture_logs() as logs:
        flags.report_where(parsed("--scope"))

    assert [(told["log_level"], GATEWAY_ADDRESS in told["hint"]) for told in logs] == [("warning", True)]
