"""Whatever is typed behind `simulate` and `plan`: an answer, or one line that says what is wrong; never a traceback."""

from __future__ import annotations

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from megatronapp.cli.main import app
from megatronapp.core.errors import MegatronAppError

SMALL = ["--stages", "2", "--microbatches", "4", "--draws", "1"]
NUMBERS = ("nan", "inf", "-inf", "-1", "0", "1", "3", "0.5", "1e-300", "1e308", "1000000007", "9" * 21)
TEXTS = (
    "",
    "x",
    "0=nan",
    "0=inf",
    "0=1e-9",
    "-1=2",
    "0-1=nan",
    "0-0=2",
    "1-0=-1",
    "9=2",
    "nan,0,0",
    "2,2,2",
    "5,nan,1",
    "1,2,1e9",
)
ORDERS = ("zb-h1", "zbv", "dualpipev", "interleaved", "no-such-one", ".csv", "/dev/null.csv")
TIMES = ("forward-ms", "dgrad-ms", "wgrad-ms", "latency-ms", "transfer-ms", "late-ms", "grad-sync-ms", "optimizer-ms")
SHARES = ("wgrad-share", "jitter-cv", "length-cv", "late-ratio", "pending-share", "split-overhead", "activation-mib")
COUNTS = ("stages", "microbatches", "chunks", "stages-per-link", "tensor", "replicas", "draws", "seed")
COMMON = {
    NUMBERS: (*TIMES, *SHARES, *COUNTS),
    TEXTS: ("slow-stage", "slow-link", "slow-spells", "chunks", "stages", "host-ms"),
}
OWN = {
    "simulate": {NUMBERS: ("cap",), ORDERS: ("schedule", "hint")},
    "plan": {NUMBERS: ("cap-limit", "forward-devices", "layers", "hidden-size", "head-layers", "embedding-layers")},
}


def options(command: str) -> st.SearchStrategy[list[str]]:
    each = [
        st.tuples(st.sampled_from(names), st.sampled_from(values))
        for group in (COMMON, OWN[command])
        for values, names in group.items()
    ]
    return st.lists(st.one_of(each), min_size=1, max_size=4).map(
        lambda given: [f"--{name}={value}" for name, value in given]
    )


@pytest.mark.parametrize("command", OWN)
@settings(deadline=None, max_examples=20)
@given(st.data())
def test_an_answer_or_one_line(command: str, data: st.DataObject) -> None:
    arguments = [command, *SMALL, *data.draw(options(command)), "--json"]

    result = CliRunner().invoke(app, arguments, standalone_mode=False)

    if result.exception is None:
        assert "NaN" not in result.stdout
        assert "Infinity" not in result.stdout
    else:
        assert isinstance(result.exception, MegatronAppError | typer.BadParameter), arguments
        assert "\n" not in str(result.exception)
