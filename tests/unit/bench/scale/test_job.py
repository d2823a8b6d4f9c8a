"""What simulated ranks measure is what ranks could measure."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.scale.faults import Fault, What
from bench.scale.job import Job, Spec, Step
from bench.scale.layout import Layout
from bench.scale.noise import Beside, Common, DeviceSpread, Drift, Jitter, NodeBursts, Outliers
from bench.scale.workload import Workload

NOISE = (DeviceSpread(0.01), Jitter(0.01, freedom=3), Outliers(0.01, 2.0), Drift(0.01), Common(0.01))
SILENT = Beside(host=0, data=0, transfer=0, microbatch=0, optimizer=0)
LAYOUTS = [
    Layout(pp=1, dp=8),
    Layout(pp=1, dp=1, tp=8),
    Layout(pp=2, dp=4),
    Layout(pp=4, dp=2, tp=2),
    Layout(pp=4, dp=1, tp=2),
    Layout(pp=2, dp=4, vpp=2, microbatches=4),
    Layout(pp=1, dp=8, ep=4),
    Layout(pp=2, dp=4, tp=2, ep=2),
]


def steps(spec: Spec, count: int, seed: int = 1) -> list[Step]:
    job = Job(spec, seed)
    return [job.step() for _ in range(count)]


def column(job: Job, step: Step, name: str, chunk: int = -1, group: str = "") -> np.ndarray:
    return step.total_ns[:, job.families.of(name, chunk, group)]


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    layout = draw(st.sampled_from(LAYOUTS))
    ranks = tuple(draw(st.sets(st.integers(0, layout.world - 1), min_size=1, max_size=3)))
    fault = Fault(draw(st.sampled_from(list(What))), ranks, draw(st.floats(1.02, 1.5)), 2)
    return Spec(
        layout,
        draw(st.sampled_from([0.1, 1.0, 60.0])),
        NOISE,
        Beside(stall_share=0.1, garbage_every=3),
        Workload(sequence_spread=draw(st.sampled_from([0.0, 0.4])), expert_spread=0.2),
        (fault,),
        restarts=draw(st.sampled_from([(), (3,)])),
        save_every=draw(st.sampled_from([0, 2])),
    )


@settings(max_examples=40)
@given(specs())
def test_a_ranks_rows_never_make_more_than_its_step(spec: Spec) -> None:
    job = Job(spec, 1)
    saves = [job.families.of(name) for name in ("checkpoint", "checkpoint_write")]

    for _ in range(4):
        step = job.step()
        rows = np.delete(step.total_ns, saves, axis=1)

        assert (rows >= 0).all()
        assert (rows.sum(axis=1) <= step.duration_ns + len(job.families)).all()


@settings(max_examples=40)
@given(specs())
def test_the_shortest_and_the_longest_operation_lie_about_the_mean(spec: Spec) -> None:
    job = Job(spec, 1)
    step = job.step()

    mean = step.total_ns / np.maximum(job.families.count, 1)
    compute = [job.families.of(name, chunk) for name in ("forward", "backward") for chunk in range(spec.layout.vpp)]

    assert (step.least_ns[:, compute] <= mean[:, compute] + 1).all()
    assert (step.most_ns[:, compute] >= mean[:, compute] - 1).all()


@settings(max_examples=20)
@given(specs())
def test_the_same_seed_makes_the_same_steps(spec: Spec) -> None:
    once, again = steps(spec, 4, seed=7), steps(spec, 4, seed=7)

    for one, other in zip(once, again, strict=True):
        assert np.array_equal(one.total_ns, other.total_ns)
        assert np.array_equal(one.ended_unix_ns, other.ended_unix_ns)
    assert not np.array_equal(once[0].total_ns, steps(spec, 1, seed=8)[0].total_ns)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_noise_a_step_takes_what_was_asked_for(layout: Layout) -> None:
    step = steps(Spec(layout, 10.0, beside=SILENT), 6)[-1]

    assert step.duration_ns * 1e-9 == pytest.approx(np.full(layout.world, 10.0), rel=0.03)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_slow_ranks_own_passes_alone_take_longer_and_everybodys_step(layout: Layout) -> None:
    healthy = Spec(layout, 10.0, beside=SILENT)
    slow = replace(healthy, faults=(Fault(What.COMPUTE, (1,), 1.2, 1),))

    job = Job(slow, 1)
    before, after = steps(healthy, 6)[-1], [job.step() for _ in range(6)][-1]

    others = np.arange(layout.world) != 1
    for name in ("forward", "backward"):
        for chunk in range(layout.vpp):
            ratio = column(job, after, name, chunk) / column(job, before, name, chunk)
            assert ratio[1] == pytest.approx(1.2)
            assert ratio[others] == pytest.approx(1.0)
    assert (after.duration_ns > 1.05 * before.duration_ns).all()


@pytest.mark.parametrize("layout", [each for each in LAYOUTS if each.dp > 1 and each.pp == 1 and each.tp == 1])
def test_who_comes_last_waits_least(layout: Layout) -> None:
    job = Job(Spec(layout, 10.0, beside=SILENT, faults=(Fault(What.HOST, (3,), 1.1, 1),)), 1)
    step = [job.step() for _ in range(6)][-1]

    communication = [job.families.of("reduce_scatter", -1, "dp"), job.families.of("all_to_all", 0, "ep")]
    waited = step.total_ns[:, [each for each in communication if each >= 0]].sum(axis=1)

    assert waited.argmin() == 3
    assert np.delete(waited, 3).min() - waited[3] > 0.5e9


def test_neighbours_of_a_slow_stage_wait_for_its_messages() -> None:
    layout = Layout(pp=4, dp=1)
    healthy, slow = (
        Job(Spec(layout, 10.0, beside=SILENT, faults=(Fault(What.COMPUTE, (2,), ratio, 1),)), 1) for ratio in (1.0, 1.5)
    )
    before, after = ([job.step() for _ in range(6)][-1] for job in (healthy, slow))

    def waits(step: Step) -> np.ndarray:
        names = ("forward_send", "forward_recv", "backward_send", "backward_recv")
        return sum(column(healthy, step, name, 0) for name in names)

    longer = waits(after) - waits(before)
    assert longer[2] < 0.1e9
    assert (np.delete(longer, 2) > 1e9).all()


def test_a_slow_link_makes_the_messages_of_its_two_ends_longer_and_nobodys_passes() -> None:
    layout = Layout(pp=2, dp=4)
    healthy, slow = (
        Job(Spec(layout, 10.0, beside=SILENT, faults=(Fault(What.LINK, (1,), ratio, 1),)), 1) for ratio in (1.0, 5.0)
    )
    before, after = ([job.step() for _ in range(6)][-1] for job in (healthy, slow))
    send = healthy.families.of("forward_send", 0)

    ratio = after.least_ns[: layout.dp, send] / before.least_ns[: layout.dp, send]

    assert ratio[1] == pytest.approx(5.0, rel=0.01)
    assert ratio[[0, 2, 3]] == pytest.approx(1.0, rel=0.01)
    assert np.array_equal(column(slow, after, "forward", 0), column(healthy, before, "forward", 0))


def test_all_ranks_of_a_node_burst_together() -> None:
    layout = Layout(pp=1, dp=32)
    sample = NodeBursts(0.05, 5, 1.2).begin(np.random.default_rng(1), layout)

    drawn = np.stack([sample() for _ in range(200)]).reshape(200, layout.nodes, layout.ranks_per_node)

    assert (drawn.max(axis=2) == drawn.min(axis=2)).all()
    assert 0.02 < (drawn[:, :, 0] > 0).mean() < 0.6


def test_devices_stay_as_they_are_across_a_restart() -> None:
    job = Job(Spec(Layout(pp=1, dp=8), 1.0, (DeviceSpread(0.1),), SILENT, restarts=(10,)), 3)
    taken = [job.step() for _ in range(20)]

    passes = [column(job, step, "forward", 0) / column(job, step, "forward", 0).mean() for step in taken]

    assert [step.attempt for step in taken] == [1] * 9 + [2] * 11
    assert passes[8] == pytest.approx(passes[19], rel=1e-3)


def test_sequences_tell_their_work_where_data_is_read() -> None:
    layout = Layout(pp=4, dp=2)
    told = Job(Spec(layout, 1.0, workload=Workload(sequence_spread=0.4)), 1).step()
    untold = Job(Spec(layout, 1.0, workload=Workload(sequence_spread=0.4, reported=False)), 1).step()

    assert (told.squares > 0).tolist() == np.isin(layout.pipeline, (0, 3)).tolist()
    assert not untold.squares.any()
    assert np.array_equal(told.total_ns, untold.total_ns)
