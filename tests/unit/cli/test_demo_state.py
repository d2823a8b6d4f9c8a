import pytest

from megatronapp.cli.demo.play import changed, shortened, steps_of
from megatronapp.cli.demo.state import DemoState
from megatronapp.cli.demo.view import Outcome, ending, line, preview
from megatronapp.cli.folders import examples_folder
from megatronapp.core.findings import Cause, Finding, Kind, State
from megatronapp.core.scenario import Scenario
from megatronapp.core.trace.columns import fill_summary
from megatronapp.core.trainingjob import TrainingJob
from megatronapp.v1 import trace_pb2

SECOND = 10**9


def slow(ranks: tuple[int, ...], page: bool = True, state: State = State.OPEN, opened_step: int = 33) -> Finding:
    return Finding(
        id=f"f-{ranks}",
        kind=Kind.SLOW_GPU,
        cause=Cause.COMPUTE,
        ranks=ranks,
        since_step=31,
        effect_ratio=1.2,
        cost_ratio=1.1,
        page=page,
        state=state,
        opened_step=opened_step,
        opened_unix_ns=104 * SECOND,
    )


def hello(rank: int) -> trace_pb2.RankMessage:
    place = trace_pb2.Placement(pipeline=rank // 2, data=rank % 2, host_unix_ns=100 * SECOND, host_clock_ns=7 * SECOND)
    body = trace_pb2.Hello(placement=place, schedule=trace_pb2.Schedule(total_steps=200))
    return trace_pb2.RankMessage(identity=trace_pb2.Identity(rank=rank), message=trace_pb2.TraceMessage(hello=body))


def summary(rank: int, step: int, start_ns: int = 0) -> trace_pb2.RankMessage:
    body = trace_pb2.StepSummary(step=step, start_ns=start_ns, duration_ns=SECOND // 5, names=["forward", "data"])
    fill_summary(body, {"name": [0, 1], "duration_sum_ns": [90, 5], "cpu_sum_ns": [80_000_000, 5]})
    body.progress.loss = 2.5
    return trace_pb2.RankMessage(
        identity=trace_pb2.Identity(rank=rank), message=trace_pb2.TraceMessage(seq=1, summary=body)
    )


@pytest.fixture
def state() -> DemoState:
    fault = {"kind": "slow_compute", "ranks": [2], "from_step": 31, "effect_ratio": 1.2}
    state = DemoState(Scenario.model_validate({"faults": [fault]}))
    for rank in range(4):
        state.on_message(hello(rank))
    return state


def test_a_step_is_done_when_every_rank_has_done_it(state: DemoState) -> None:
    for rank, step in ((0, 5), (1, 5), (2, 4), (3, 5)):
        state.on_message(summary(rank, step))

    assert (state.step, state.total_steps, state.loss) == (4, 200, 2.5)
    assert state.ranks[0].compute_seconds == pytest.approx(0.08)


def test_the_right_rank_found_in_time(state: DemoState) -> None:
    state.on_message(summary(2, 31, start_ns=8 * SECOND))
    state.find(slow((2,)))

    assert state.verdict() == {
        "injected": [2],
        "found": [2],
        "detection_steps": 3,
        "detection_seconds": 3.0,
        "cause": "compute",
    }


@pytest.mark.parametrize(
    "finding", [slow((2,), page=False), slow((2,), state=State.RESOLVED)], ids=["advice", "resolved"]
)
def test_what_does_not_page_now_is_not_found(state: DemoState, finding: Finding) -> None:
    state.find(finding)

    assert state.found == []


def test_a_suspicion_from_before_the_fault_counts_from_its_page(state: DemoState) -> None:
    early = slow((2,), page=False, opened_step=29)
    state.find(early)
    state.on_message(summary(2, 31, start_ns=8 * SECOND))
    for rank in range(4):
        state.on_message(summary(rank, 35))
    state.find(early.model_copy(update={"page": True, "updated_unix_ns": 105 * SECOND}))

    verdict = state.verdict()

    assert (verdict["detection_steps"], verdict["detection_seconds"]) == (5, 4.0)


def test_a_wrong_rank_shows_as_found_beside_the_right_one(state: DemoState) -> None:
    state.find(slow((2,)))
    state.find(slow((3,)))

    assert state.found == [2, 3]


def test_a_fault_of_a_stage_hits_all_its_ranks() -> None:
    state = DemoState(Scenario.model_validate({"faults": [{"kind": "hang", "stages": [1], "from_step": 5}]}))
    for rank in range(4):
        state.on_message(hello(rank))
        state.on_message(summary(rank, 4))

    assert state.injected == [2, 3]


def test_one_line_says_who_since_when_why_and_the_cost() -> None:
    assert line(slow((2,))) == (
        "FOUND: rank 2 since step 31: slow device (compute), 20 % slower than expected, "
        "costs the job 10 % of its step time"
    )


def test_only_what_changes_is_told_and_only_of_findings_that_page(state: DemoState) -> None:
    told: dict[str, str] = {}
    state.find(slow((3,), page=False))
    state.find(slow((2,)))
    first = [finding.ranks for finding in changed(state, told)]
    state.find(slow((2,)).model_copy(update={"effect_ratio": 1.31}))
    second = changed(state, told)
    state.find(slow((2,), state=State.RESOLVED))
    third = [line(finding).partition(":")[0] for finding in changed(state, told)]

    assert (first, second, third) == ([(2,)], [], ["resolved"])
    assert state.unconfirmed == 1


def test_the_end_says_how_it_came_and_what_was_open(state: DemoState) -> None:
    for rank in range(4):
        state.on_message(summary(rank, 200))
    state.find(slow((2,)))
    state.find(slow((1,), page=False))
    state.find(slow((3,)))
    state.find(slow((3,), state=State.RESOLVED))

    said = ending(state, Outcome.FAILED)

    assert said[0] == "The run has failed at step 200 of 200."
    assert said[1].startswith("open at the end: rank 2 since step 31: slow device (compute), 20 % slower")
    assert said[2:] == ["resolved before the end: 1"]


def test_an_end_without_findings_says_so_too(state: DemoState) -> None:
    state.find(slow((1,), page=False))

    assert ending(state, Outcome.FINISHED) == ["The run has finished at step 0 of 200.", "nothing was found"]


@pytest.mark.parametrize(
    ("exit_code", "stopped", "outcome"),
    [
        (0, False, Outcome.FINISHED),
        (0, True, Outcome.STOPPED),
        (1, False, Outcome.FAILED),
        (143, True, Outcome.STOPPED),
    ],
)
def test_a_run_that_was_asked_to_stop_has_stopped(exit_code: int, stopped: bool, outcome: Outcome) -> None:
    assert Outcome.of(exit_code, stopped=stopped) is outcome


def test_a_run_too_short_for_its_fault_says_so_at_once(state: DemoState) -> None:
    said = preview("local/demo", "0123456789abcdef", state.scenario, steps=10)

    assert said[0].startswith("run   local/demo, id 01234567, started ")
    assert said[1] == "fault slow compute on rank 2 from step 31, 20 % slower"
    assert "ends with step 10, before it begins" in said[2]
    assert len(preview("local/demo", "0123456789abcdef", state.scenario, steps=100)) == 2


@pytest.mark.parametrize("steps", [1, 5, 10, 11, 600])
def test_a_short_run_warms_up_before_it_ends(steps: int) -> None:
    flags = dict(flag.split("=") for flag in shortened(steps))

    assert 0 <= int(flags["--lr-warmup-iters"]) < int(flags["--train-iters"]) == steps


def test_what_an_earlier_demo_left_open_is_not_this_ones(state: DemoState) -> None:
    earlier = slow((2,), state=State.RESOLVED).model_copy(update={"run": "of-yesterday", "opened_unix_ns": SECOND})
    state.find(earlier)

    assert state.findings == {}
    assert state.verdict()["cause"] is None


@pytest.mark.parametrize(("total_steps", "done", "hit"), [(10, 10, []), (30, 30, []), (99, 29, []), (99, 30, [2])])
def test_a_fault_that_has_not_begun_has_hit_nobody(
    state: DemoState, total_steps: int, done: int, hit: list[int]
) -> None:
    state.total_steps = total_steps
    for rank in range(4):
        state.on_message(summary(rank, done))

    verdict = state.verdict()

    assert (verdict["injected"], verdict["found"]) == (hit, [])


@pytest.mark.parametrize(("flags", "steps"), [([], 600), (shortened(10), 10)])
def test_a_fault_after_the_last_step_is_told_of_whoever_says_how_many_there_are(flags: list[str], steps: int) -> None:
    job = TrainingJob.load(examples_folder() / "laptop" / "demo.yaml")
    job = job.model_copy(update={"spec": job.spec.model_copy(update={"args": [*job.spec.args, *flags]})})
    late = Scenario.model_validate(
        {"faults": [{"kind": "slow_compute", "ranks": [2], "from_step": 100_000, "effect_ratio": 2}]}
    )

    said = preview("local/demo", "0123456789abcdef", late, steps_of(job))

    assert said[-1].strip() == f"The run ends with step {steps}, before it begins: nothing will be slow."
