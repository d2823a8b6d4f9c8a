"""`megatronapp simulate`, as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatronapp.cli.main import app
from megatronapp.core.errors import MegatronAppError
from megatronapp.core.pipeline import orders
from megatronapp.core.pipeline.schedule_csv import read_csv
from tests.support.typed import typed

EIGHT = "--stages 8 --microbatches 32 --forward-ms 10 --dgrad-ms 10 --wgrad-ms 10"


def simulated(arguments: str) -> dict:
    answer: dict = json.loads(typed(app, f"simulate {arguments} --json"))
    return answer


def test_without_a_schedule_it_is_stocks() -> None:
    plain, interleaved = simulated(EIGHT), simulated(f"{EIGHT} --chunks 2")

    assert (plain["step_ms"], interleaved["step_ms"]) == (30 * (32 + 7), 30 * (32 + 3.5))
    assert plain["over_bound_ratio"] == interleaved["over_bound_ratio"] == 0
    assert interleaved["peak_activations"] == [23, 21, 19, 17, 15, 13, 11, 9]
    assert not interleaved["layout"]["split"]


def test_a_hint_chooses_while_running_under_its_cap() -> None:
    answer = simulated(f"{EIGHT} --chunks 2 --hint interleaved --jitter-cv 0.2 --draws 3")

    assert answer["draws"] == 3
    assert answer["step_spread_ms"] > 0
    assert max(answer["peak_activations"]) == 23
    assert answer["layout"]["split"]


def test_a_step_takes_as_long_as_its_hosts_need_to_launch_it() -> None:
    known = f"{EIGHT} --chunks 2"

    assert simulated(f"{known} --host-ms 8,8,2")["step_ms"] > 18 * 32 * 2 > simulated(known)["step_ms"]
    assert simulated(f"{known} --host-ms 0")["step_ms"] == simulated(known)["step_ms"]


def test_where_launching_costs_nothing_choices_know_more() -> None:
    late = f"{EIGHT} --chunks 2 --hint interleaved-zb --late-ratio 0.05 --late-ms 15 --draws 3"

    assert simulated(f"{late} --host-ms 0")["step_ms"] < simulated(late)["step_ms"]


def test_text_tells_what_json_does() -> None:
    text = typed(app, f"simulate {EIGHT} --schedule zb-h1 --activation-mib 100")

    assert "zb-h1 as it is: 8 stages, 32 microbatches, B and W split" in text
    assert "1,030.000 ms  bubble 6.8%" in text
    assert "800, 800, 800, 800, 800, 800, 800, 800 MiB at most" in text


def test_files_show_the_step(tmp_path: Path) -> None:
    files = f"--svg {tmp_path}/a.svg --chrome {tmp_path}/a.json --csv {tmp_path}/a.csv"
    typed(app, f"simulate --stages 4 --microbatches 8 --schedule zb-h2 {files}")

    layout, written = read_csv((tmp_path / "a.csv").read_text())
    assert written == orders.all_stages("zb-h2", layout)
    boxes = (tmp_path / "a.svg").read_text().count("<title>")
    assert boxes == 4 * 8 * 3
    events = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    spans = [each for each in events if each["ph"] == "X"]
    assert {each["name"] for each in spans} == {"forward", "backward", "wgrad"}
    assert len(spans) == 4 * 8 * 3
    counted = [each["args"]["in flight"] for each in events if each["ph"] == "C" and each["pid"] == 0]
    assert (max(counted), counted[-1]) == (7, 0)


def test_a_schedule_that_was_written_can_be_run(tmp_path: Path) -> None:
    shape = "--stages 4 --microbatches 8"
    first = simulated(f"{shape} --schedule zb-h2 --csv {tmp_path}/a.csv")

    again = simulated(f"{shape} --schedule {tmp_path}/a.csv")

    assert (again["step_ms"], again["peak_activations"]) == (first["step_ms"], first["peak_activations"])


def test_a_small_cap_is_told() -> None:
    text = typed(app, f"simulate {EIGHT} --hint 1f1b --no-split --cap 6")

    assert "note: a cap of 6 activations keeps the pipeline from full pace, which takes 8; raise it to 8" in text


def test_replicas_tensor_ranks_and_the_end_of_a_step() -> None:
    quiet = simulated(f"{EIGHT} --jitter-cv 0.1")
    many = simulated(f"{EIGHT} --jitter-cv 0.1 --replicas 4 --tensor 8 --grad-sync-ms 20 --optimizer-ms 5")

    assert many["step_ms"] > 1.1 * quiet["step_ms"]
    assert many["step_ms"] - many["pipeline_ms"] == pytest.approx(25, abs=1e-3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "say how many --stages and --microbatches there are, or name a recording with --trace"),
        ("--stages 0 --microbatches 4", "at least one of its stages"),
        (f"{EIGHT} --schedule gpipe", "no schedule gpipe; there are 1f1b"),
        (f"{EIGHT} --schedule there-is-none.csv", "there-is-none.csv is not there"),
        (f"{EIGHT} --schedule 1f1b --hint 1f1b", "not both"),
        (f"{EIGHT} --cap 4", "--cap goes with --hint"),
        (f"{EIGHT} --chunks 4 --hint interleaved --cap 3", "it must be at least 4"),
        (f"{EIGHT} --chunks 2 --schedule zb-h1", "one chunk a stage"),
        ("--stages 8 --microbatches 30 --chunks 2", "30 in groups of 8 leave 6"),
        (f"{EIGHT} --slow-stage 8=2", "no stage 8 in a pipeline of 8"),
        (f"{EIGHT} --slow-stage 3", "--slow-stage 3: write STAGE=FACTOR"),
        (f"{EIGHT} --slow-link 0-9=2", "no link from stage 0 to stage 9"),
        (f"{EIGHT} --slow-link 0-1=nan", "its factor is above 0"),
        (f"{EIGHT} --latency-ms 1e8", "a message that takes hours"),
        ("--stages 8 --microbatches 1000000007", "more than can be simulated at once"),
        (f"{EIGHT} --chunks 0", "at least one of its chunks"),
        (f"{EIGHT} --slow-link 0=2", "write FROM-TO=FACTOR"),
        (f"{EIGHT} --slow-spells 2", "write FACTOR,ENTER,LEAVE"),
        (f"{EIGHT} --host-ms 5", "--host-ms 5: write F,B,W in ms, such as 5,5,1, or 0"),
        (f"{EIGHT} --host-ms 5,-5,1", "is no time that a step could take"),
        (f"{EIGHT} --late-ratio 0.1", "need both --late-ratio and --late-ms"),
        (f"{EIGHT} --latency-ms -1", "is no time that a step could take"),
        (f"{EIGHT} --forward-ms nan", "positive numbers"),
        (f"{EIGHT} --replicas 10000", "more than can be simulated at once"),
        (f"{EIGHT} --trace there-is-none", "there-is-none is not there; name a trace folder"),
        (f"{EIGHT} --trace README.md", "neither a trace folder nor one of MegaScan's files"),
        (f"{EIGHT} --svg /there/is/none.svg", "can't be written"),
        (f"{EIGHT} --pending-share 2", "--pending-share from 0 to 1"),
        ("--stages 64 --microbatches 512 --svg a.svg", "take --chrome"),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_change(arguments: str, said: str) -> None:
    with pytest.raises(MegatronAppError) as error:
        typed(app, f"simulate {arguments}")

    assert said in str(error.value)
    assert "\n" not in str(error.value)
