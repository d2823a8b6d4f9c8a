"""Every schedule and layout, traced in full: who computed what, and which messages and collectives belong together."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest

from megatronapp.core.trace.group_kinds import GroupKind
from tests.integration.trainer.plugins.scan.traced import RankTrace, Span, train_plain, train_traced

SP = "--tensor-model-parallel-size 2 --sequence-parallel --normalization RMSNorm"
MOE = "--disable-bias-linear --num-experts 4 --expert-model-parallel-size 2 --moe-router-topk 2"
LAYOUTS = {
    "one process": (1, ""),
    "1f1b": (2, "--pipeline-model-parallel-size 2"),
    "interleaved": (2, "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1"),
    "overlapped messages": (
        4,
        "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 1 --num-layers 8",
    ),
    "tensor and sequence": (2, SP),
    "distributed optimizer": (2, "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"),
    "experts": (2, MOE),
    "experts in one kernel": (2, f"{MOE} --moe-grouped-gemm"),
    "tensor and pipeline": (4, f"{SP} --pipeline-model-parallel-size 2"),
}
QUICK = ("one process", "interleaved", "distributed optimizer")
PEER_NAME = {"forward_send": "forward_recv", "backward_send": "backward_recv"}


@pytest.mark.parametrize(
    "layout", [pytest.param(each, marks=() if each in QUICK else pytest.mark.long) for each in LAYOUTS]
)
def test_a_layout_is_traced_completely_and_leaves_the_losses_bitwise_equal(layout: str, tmp_path: Path) -> None:
    world, flags = LAYOUTS[layout]

    ranks, losses = train_traced(tmp_path, world, flags)

    assert losses == train_plain(world, flags)
    for rank in ranks:
        assert rank.traced_steps == [1, 3]
        assert [summary.step for summary in rank.summaries] == [1, 2, 3]
        assert_each_microbatch_once(rank)
        assert_spans_nest(rank.spans)
        assert_layers_fill_their_microbatches(rank)
    assert_messages_match(ranks)
    assert_collectives_match(ranks)
    assert {c.kind for rank in ranks for c in rank.communicators.values()} <= set(GroupKind)


def assert_each_microbatch_once(rank: RankTrace) -> None:
    chunks = max(rank.hello.placement.sizes.virtual_pipeline, 1)
    expected = {(m, c): 1 for m in range(rank.hello.schedule.microbatches) for c in range(chunks)}
    for step in rank.traced_steps:
        for name in ("forward", "backward"):
            assert Counter((s.microbatch, s.chunk) for s in rank.of(name, step=step)) == expected


def assert_spans_nest(spans: list[Span]) -> None:
    """Host spans lie inside each other or apart; messages and asynchronous collectives may overlap."""
    overlapping = {"forward_send", "forward_recv", "backward_send", "backward_recv", "reduce_scatter", "all_gather"}
    host = sorted(
        (s for s in spans if s.name not in overlapping | {"all_reduce", "gc"}), key=lambda s: (s.start, -s.end)
    )
    around: list[Span] = []
    for span in host:
        while around and around[-1].end <= span.start:
            around.pop()
        assert not around or span.end <= around[-1].end, f"{span} crosses {around[-1]}"
        around.append(span)


def assert_layers_fill_their_microbatches(rank: RankTrace) -> None:
    """Each layer of a chunk once forward and once backward for each microbatch, with its parts."""
    by_chunk: dict[int, set[int]] = defaultdict(set)
    for span in rank.of("layer_forward"):
        by_chunk[span.chunk].add(span.layer)
    for step in rank.traced_steps:
        for name in ("layer_forward", "layer_backward", "qkv", "core_attention", "attention_projection"):
            found = Counter((s.microbatch, s.chunk, s.layer) for s in rank.of(name, step=step))
            microbatches = range(rank.hello.schedule.microbatches)
            assert found == {(m, c, n): 1 for m in microbatches for c, layers in by_chunk.items() for n in layers}


def assert_messages_match(ranks: list[RankTrace]) -> None:
    def key(sender: int, receiver: int, span: Span) -> tuple[int, int, int, int]:
        return sender, receiver, span.sequence, span.bytes

    for step in ranks[0].traced_steps:
        for send, receive in PEER_NAME.items():
            sent = [key(r, s.peer, s) for r, rank in enumerate(ranks) for s in rank.of(send, step=step)]
            received = [key(s.peer, r, s) for r, rank in enumerate(ranks) for s in rank.of(receive, step=step)]
            assert sorted(sent) == sorted(received)
            assert len(set(sent)) == len(sent)
            assert all(size > 0 for *_, size in sent)


def assert_collectives_match(ranks: list[RankTrace]) -> None:
    """All members of a communicator carry the same operation, of the same size, under the same number."""
    names = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier")
    seen: dict[tuple[str, int], list[tuple[str, int, int]]] = defaultdict(list)
    members: dict[str, list[int]] = {}
    for r, rank in enumerate(ranks):
        members |= {c.id: list(c.ranks) for c in rank.communicators.values()}
        for span in rank.of(*names):
            assert span.sequence > 0
            seen[span.communicator, span.sequence].append((span.name, span.step, r))
    for (communicator, _), operations in seen.items():
        assert [r for *_, r in operations] == members[communicator]
        assert len({name for name, *_ in operations}) == 1


def test_summaries_are_sent_for_every_step_and_count_self_time(tmp_path: Path) -> None:
    ranks, _ = train_traced(tmp_path, 4, "--pipeline-model-parallel-size 2")

    for rank in ranks:
        microbatches = rank.hello.schedule.microbatches
        for summary in rank.summaries:
            rows = {(row["name"], row["chunk"]): row for row in rank.rows(summary.step)}
            assert rows["forward", 0]["count"] == rows["backward", 0]["count"] == microbatches
            assert 0 < rows["forward", 0]["cpu_sum_ns"] <= summary.cpu_ns
            assert sum(row["duration_sum_ns"] for row in rows.values()) <= summary.duration_ns
            assert summary.traced == (summary.step in (1, 3))
        assert list(rank.summaries[0].phases) == [1]
        assert rank.heartbeats[-1].closing


def test_work_travels_with_microbatches_to_forward_and_backward(tmp_path: Path) -> None:
    ranks, _ = train_traced(tmp_path, 1, "")

    for name in ("data", "forward", "backward"):
        assert {(s.tokens > 0, s.length_squares >= s.tokens) for s in ranks[0].of(name)} == {(True, True)}


def test_recomputed_layers_are_told_from_the_backward_around_them(tmp_path: Path) -> None:
    recompute = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"

    ranks, losses = train_traced(tmp_path, 1, recompute, steps=1)

    assert losses == train_plain(1, recompute, steps=1)
    microbatches = ranks[0].hello.schedule.microbatches
    assert len(ranks[0].of("layer_forward")) == 2 * 4 * microbatches
    assert len(ranks[0].of("layer_backward")) == 4 * microbatches
    assert_spans_nest(ranks[0].spans)


def test_granularity_base_leaves_the_layers_out(tmp_path: Path) -> None:
    ranks, _ = train_traced(tmp_path, 1, "--trace-granularity base")

    assert {span.name for span in ranks[0].spans} <= {
        "step",
        "data",
        "forward",
        "backward",
        "grad_sync",
        "optimizer",
        "gc",
        "processor_probe",
        "all_reduce",
        "broadcast",
        "all_gather",
        "reduce_scatter",
    }


def test_on_a_cpu_rank_a_probe_comes_before_each_pass(tmp_path: Path) -> None:
    ranks, _ = train_traced(tmp_path, 1, "")

    watched = {"processor_probe", "forward", "backward"}
    in_order = sorted((span for span in ranks[0].spans if span.name in watched), key=lambda span: span.start)
    assert in_order
    assert all(span.name == "processor_probe" for span in in_order[::2])
    assert all(span.name in {"forward", "backward"} for span in in_order[1::2])


def test_evaluation_and_checkpoint_are_phases_of_the_step_after_them(tmp_path: Path) -> None:
    flags = f"--eval-interval 1 --eval-iters 1 --save-interval 1 --save {tmp_path / 'checkpoints'}"

    ranks, _ = train_traced(tmp_path / "trace", 1, flags)

    assert set(ranks[0].summaries[1].phases) == {2, 3}
    assert {"evaluate", "checkpoint", "checkpoint_write"} <= {row["name"] for row in ranks[0].rows(3)}
    for step in (1, 3):
        assert len(ranks[0].of("forward", step=step)) == ranks[0].hello.schedule.microbatches
