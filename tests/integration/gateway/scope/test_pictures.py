"""A viewer subscribes, and gets the whole model's values, whatever ranks hold which part of them."""

from dataclasses import replace

import numpy as np
import pytest

from megatronapp.core.scope.frame import Flag, Kind, Section
from megatronapp.core.scope.quantize import decode
from megatronapp.core.scope.results import Counts, Top, of_frame
from megatronapp.core.scope.token_texts import pack_texts, unpack_texts
from megatronapp.v1 import scope_pb2
from tests.integration.gateway.conftest import Served, Start
from tests.integration.gateway.scope.conftest import address, sample, viewing, with_pods
from tests.support import scope_pods
from tests.support.scope_pods import attached, ranks, values_of, whole_site


async def test_a_picture_is_stitched_from_the_shards_of_two_stages(scope: Served) -> None:
    async with attached(address(scope), ranks(tensor=2, pipeline=2)) as pods, viewing(scope) as viewer:
        told = await viewer.subscribe(1, "layers[*].attn.q | batch(0)", quantizer="f32", credits=8)
        for rank in pods:
            await rank.asked(1)
        for rank in pods:
            await rank.step(5)
        frames = {frame.layer: frame for frame in [await viewer.frame() for _ in range(4)]}

    assert told["axes"] == ["token", "head", "chan"]
    assert told["shape"] == [8, 4, 4]
    assert sorted(frames) == [0, 1, 2, 3]
    for layer, frame in frames.items():
        assert np.array_equal(decode(frame).array, values_of(whole_site("attn.q"), layer, 5)[0])
        assert (frame.step, frame.missing_shards, frame.subscription) == (5, 0, 1)
        assert not frame.flags & Flag.PARTIAL


@pytest.mark.parametrize(
    ("expression", "kind", "asked"),
    [
        ("layers[1].resid_post | stats(mean,std,nonfinite)", Kind.TENSOR, [0, 1]),
        ("layers[1].mlp.act | mean(chan) | max(token)", Kind.TENSOR, [0, 1]),
        ("layers[1].mlp.act | hist(16,-3,3)", Kind.HIST, [0, 1]),
        ("logits | topk(5)", Kind.TOPK, [2, 3]),
        ("layers[1].attn.k | group(1)", Kind.TENSOR, [1]),
    ],
)
async def test_reductions_over_split_axes_are_those_of_the_whole(
    scope: Served, expression: str, kind: Kind, asked: list[int]
) -> None:
    async with attached(address(scope), ranks()) as pods, viewing(scope) as viewer:
        await viewer.subscribe(1, expression, quantizer="f32")
        site = whole_site(expression.split(" ")[0].removeprefix("layers[1]."))
        for rank in asked:
            await pods[rank].asked(1)
        for rank in pods:
            await rank.step(3)
        frame = await viewer.frame()

    whole = values_of(site, None if site.name == "logits" else 1, 3)
    assert frame.kind is kind
    result = of_frame(frame)
    if isinstance(result, Top):
        assert np.array_equal(result.indexes, np.argsort(-whole, -1)[..., :5])
        assert np.allclose(result.log_sum_exp, np.log(np.exp(whole.astype(float)).sum(-1)), rtol=1e-5)
    elif isinstance(result, Counts):
        assert result.counts.sum() == whole.size
    elif "stats" in expression:
        assert np.allclose(decode(frame).array, [whole.mean(), whole.std(), 0], rtol=1e-5, atol=1e-6)
    elif "group" in expression:
        assert np.array_equal(decode(frame).array, whole[:, :, 1])
    else:
        assert np.allclose(decode(frame).array, whole.mean(-1).max(-1), rtol=1e-5)


async def test_megascopes_words_show_what_they_showed(scope: Served) -> None:
    async with attached(address(scope), ranks(tensor=2)) as pods, viewing(scope) as viewer:
        asked = "MLP1_mat_mul | batch(0) | pixels(4) | data.mean(dim=-1)"
        told = await viewer.subscribe(1, asked, quantizer="f32", credits=4)
        for rank in pods:
            await rank.asked(1)
            await rank.step(3)
        frames = {frame.layer: frame for frame in [await viewer.frame() for _ in range(4)]}

    whole = values_of(whole_site("mlp.fc1"), 2, 3)[0]
    assert told["shape"] == [8, 4]
    assert np.allclose(decode(frames[2]).array, whole.reshape(8, 4, 8).mean(-1), atol=1e-6)


async def test_what_one_rank_has_whole_is_asked_of_it_alone_and_passes_through(scope: Served) -> None:
    async with attached(address(scope), ranks()) as pods, viewing(scope) as viewer:
        await viewer.subscribe(1, "layers[2].attn.probs | head(3) | batch(1)")
        await pods[3].asked(1)
        sent = next(iter(pods[3].frames(4)))
        await pods[3].step(4)
        frame = await viewer.frame()

    assert [len(rank.demand.taps) for rank in pods] == [0, 0, 0, 1]
    assert pods[3].demand.taps[0].quantizer == "sqrt"
    assert bytes(frame.payload) == sent.frame[-64:]
    assert np.allclose(decode(frame).array, values_of(whole_site("attn.probs"), 2, 4)[1, 3], atol=0.05)


async def test_texts_of_tokens_are_those_of_all_replicas_and_one_rank_of_each_sends_them(scope: Served) -> None:
    async with attached(address(scope), ranks(data=2)) as pods, viewing(scope) as viewer:
        pods[0].beside[Section.TOKEN_TEXTS] = pack_texts({1: " the", 2: "\u202e"})
        pods[2].beside[Section.TOKEN_TEXTS] = pack_texts({1: " the", 3: "<script>"})
        told = await viewer.subscribe(1, "tokens")
        for number in (0, 2):
            await pods[number].asked(1)
        for rank in pods:
            await rank.step(3)
        frame = await viewer.frame()

    assert (told["quantizer"], frame.missing_shards) == ("f32", 0)
    assert [len(rank.demand.taps) for rank in pods] == [1, 0, 1, 0, 0, 0, 0, 0]
    assert unpack_texts(frame.sections[Section.TOKEN_TEXTS]) == {1: " the", 2: "\u202e", 3: "<script>"}


async def test_texts_of_a_sequence_that_context_ranks_share_are_put_together(scope: Served) -> None:
    async with attached(address(scope), ranks(tensor=1, pipeline=1, context=2)) as pods, viewing(scope) as viewer:
        pods[0].beside[Section.TOKEN_TEXTS] = pack_texts({1: " the", 4: " end"})  # the first and the last stretch
        pods[1].beside[Section.TOKEN_TEXTS] = pack_texts({2: " king", 3: " slept"})
        await viewer.subscribe(1, "tokens | batch(0)")
        for rank in pods:
            await rank.asked(1)
            await rank.step(3)
        frame = await viewer.frame()

    assert np.array_equal(decode(frame).array, values_of(whole_site("tokens"), None, 3)[0])
    assert unpack_texts(frame.sections[Section.TOKEN_TEXTS]) == {1: " the", 2: " king", 3: " slept", 4: " end"}


async def test_each_replica_is_shown_by_itself_beside_all_together(scope: Served) -> None:
    together = "layers[1].resid_post | stats(mean,std)"
    async with attached(address(scope), ranks(tensor=2, pipeline=1, data=2)) as pods, viewing(scope) as viewer:
        await viewer.subscribe(1, together, quantizer="f32")
        told = await viewer.subscribe(2, f"{together} | replicas", quantizer="f32")
        for rank in pods:
            await rank.asked(2)
        for rank in pods:
            await rank.step(3)
        frames = {frame.subscription: decode(frame).array for frame in [await viewer.frame() for _ in range(2)]}

    site = next(site for site in pods[0].sites if site.name == "resid_post")
    whole = values_of(site, 1, 3)
    assert (told["axes"], told["shape"]) == (["replica", "statistic"], [2, 2])
    assert np.allclose(frames[1], [whole.mean(), whole.std()], atol=1e-6)
    assert np.allclose(frames[2], [[half.mean(), half.std()] for half in np.split(whole, 2)], atol=1e-6)


@pytest.mark.parametrize("corrupt", [False, True])
async def test_parameters_that_differ_between_replicas_are_told_of_once(
    start: Start, monkeypatch: pytest.MonkeyPatch, corrupt: bool
) -> None:
    scope = await with_pods(start, scope_max_fps=1e6)
    seen = "layers[1].resid_post | stats(mean) | replicas"  # of other data, which differs
    async with attached(address(scope), ranks(tensor=2, pipeline=1, data=2)) as pods, viewing(scope) as viewer:
        await viewer.subscribe(1, "weight.unembed | stats(l2) | replicas", quantizer="f32", credits=9)
        await viewer.subscribe(2, seen, quantizer="f32", credits=9)
        for rank in pods:
            await rank.asked(2)
        for step in (3, 4):
            for rank in pods:
                with monkeypatch.context() as patch:
                    if corrupt and rank.rank == 2:
                        patch.setattr(scope_pods, "values_of", lambda *at: values_of(*at) * np.float32(1.0001))
                    await rank.step(step)
            for _ in range(2):
                await viewer.frame()
        await viewer.send(ping={"time": 1})
        await viewer.text("pong")

    alerts = [alert for text in viewer.texts if (alert := text.get("event", {}).get("event", {}).get("alert"))]
    detail = "replicas 0, 1 hold different values"
    told = {"kind": "replica_difference", "site": "weight.unembed", "step": "3", "detail": detail}
    assert alerts == ([told] if corrupt else [])


async def test_what_replicas_hold_alike_is_asked_of_each_where_they_are_shown_apart(scope: Served) -> None:
    async with attached(address(scope), ranks(tensor=2, pipeline=1, data=2)) as pods, viewing(scope) as viewer:
        await viewer.subscribe(1, "weight.unembed | stats(l2)")
        await viewer.subscribe(2, "weight.unembed | stats(l2) | replicas")
        asked = [2, 2, 1, 1]
        for rank, taps in zip(pods, asked, strict=True):
            await rank.asked(taps)


async def test_a_shard_that_does_not_come_leaves_a_partial_picture(scope: Served) -> None:
    async with attached(address(scope), ranks()) as pods, viewing(scope) as viewer:
        await viewer.subscribe(1, "layers[0].attn.q | batch(0)", quantizer="f32")
        await pods[0].asked(1)
        await pods[0].step(1)
        frame = await viewer.frame()

    values = decode(frame)
    assert frame.flags & Flag.PARTIAL
    assert frame.missing_shards == 1
    assert values.missing is not None
    assert values.missing[:, 2:].all()
    assert not values.missing[:, :2].any()


async def test_a_page_is_given_no_more_cells_than_it_has_and_values_keep_their_sign(scope: Served) -> None:
    async with attached(address(scope), ranks()) as pods, viewing(scope) as viewer:
        told = await viewer.subscribe(1, "layers[0].mlp.act | batch(0)", width=4, height=4, quantizer="f32")
        await pods[0].asked(1)
        await pods[1].asked(1)
        for rank in pods[:2]:
            await rank.step(1)
        frame = await viewer.frame()

    whole = values_of(whole_site("mlp.act"), 0, 1)[0]
    assert told["expression"] == "layers[0].mlp.act | batch(0) | pool(chan,4,farthest) | pool(token,4,farthest)"
    cells = whole.reshape(4, 2, 4, 8)
    largest, least = cells.max((1, 3)), cells.min((1, 3))
    assert np.array_equal(decode(frame).array, np.where(-least > largest, least, largest))
    assert frame.flags & Flag.DOWNSAMPLED


async def test_two_viewers_of_the_same_are_one_tap_and_none_is_left_when_they_go(scope: Served) -> None:
    async with attached(address(scope), ranks()) as pods:
        async with viewing(scope) as one, viewing(scope) as other:
            for number, viewer in enumerate((one, other), 1):
                await viewer.subscribe(number, "layers[0].resid_post | token(0) | batch(0)", quantizer="f32")
            await pods[0].asked(1)
            await pods[0].step(7)
            frames = [await one.frame(), await other.frame()]
        await pods[0].asked(0)

    assert [frame.subscription for frame in frames] == [1, 2]
    assert bytes(frames[0].payload) == bytes(frames[1].payload)


async def test_who_comes_later_gets_the_newest_picture_at_once(scope: Served) -> None:
    expression = "layers[0].resid_post | token(0)"
    async with attached(address(scope), ranks()) as pods, viewing(scope) as one, viewing(scope) as other:
        await one.subscribe(1, expression)
        await pods[0].asked(1)
        await pods[0].step(7)
        await one.frame()
        await other.subscribe(1, expression)
        frame = await other.frame()

    assert frame.step == 7


async def test_principal_components_of_all_steps_are_numpys(scope: Served) -> None:
    async with attached(address(scope), ranks()) as pods, viewing(scope) as viewer:
        told = await viewer.subscribe(1, "layers[0].attn.context | head(0) | pca(2)", quantizer="f32", credits=9)
        await pods[0].asked(1)
        for step in (1, 2):
            await pods[0].step(step, request="r")
        frames = [await viewer.frame() for _ in range(2)]

    rows = np.concatenate(
        [values_of(whole_site("attn.context"), 0, step)[:, :, 0].reshape(-1, 4) for step in (1, 2)]
    ).astype(float)
    centred = rows - rows.mean(0)
    values = np.linalg.svd(centred, compute_uv=False)
    found = decode(frames[1]).array
    assert told["axes"] == ["row", "component"]
    assert found.shape == (len(rows), 2)
    assert np.allclose((found**2).sum(0), values[:2] ** 2, rtol=1e-3)
    places = np.frombuffer(frames[1].sections[Section.ROWS], "<u4").reshape(-1, 4)
    assert {tuple(each) for each in places[:, :2].tolist()} == {(0, 1), (0, 2)}  # of one generation, both steps
    assert places[:16, 2].tolist() == [0] * 8 + [1] * 8


async def test_principal_components_have_every_row_of_long_prompts(
    scope: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more values than a picture for viewers may have."""
    large = replace(scope_pods.MODEL, batch=4, tokens=128, hidden=4352)
    monkeypatch.setattr(scope_pods, "MODEL", large)
    async with attached(address(scope), ranks(tensor=1, pipeline=1)) as pods, viewing(scope) as viewer:
        await viewer.subscribe(1, "layers[0].resid_post | pca(2)", quantizer="f32")
        await pods[0].asked(1)
        await pods[0].step(127, request="r")
        frame = await viewer.frame()

    places = np.frombuffer(frame.sections[Section.ROWS], "<u4").reshape(-1, 4)
    assert places[:, 2:].tolist() == [[entry, position] for entry in range(4) for position in range(128)]
    assert decode(frame).array.shape == (512, 2)


async def test_who_looks_is_told_what_a_rank_left_out_and_once(scope: Served) -> None:
    async with attached(address(scope), ranks()) as pods, viewing(scope) as viewer, viewing(scope) as other:
        await viewer.subscribe(5, "layers[0].resid_post | token(0)")
        await other.subscribe(1, "layers[0].resid_post | token(1)")
        await pods[0].asked(2)
        [tap] = [each.id for each in pods[0].demand.taps if "token(0)" in each.expression]
        for _ in range(2):
            await pods[0].event(alert=scope_pb2.ScopeAlert(kind="left_out", tap=tap, detail="it has 40 MiB"))
        await pods[0].event(series=scope_pb2.ScopeSeries(name="loss", step=1))
        for each in (viewer, other):
            await each.event("series")

    stalls = [text["stall"] for text in viewer.texts if "stall" in text]
    assert stalls == [{"id": 5, "reason": "left_out"}]
    assert not [text for text in other.texts if "stall" in text]


async def test_who_may_have_missed_what_an_agent_lost_is_told(scope: Served) -> None:
    """What was overwritten does not say whose it was: it may be of whatever this rank was asked for."""
    async with attached(address(scope), ranks()) as pods, viewing(scope) as viewer, viewing(scope) as other:
        await viewer.subscribe(5, "layers[0].resid_post | token(0)")
        await viewer.subscribe(6, "layers[0].resid_post | token(1)")
        await other.subscribe(1, "layers[3].resid_post | token(0)")  # of another stage
        await pods[0].asked(2)
        await pods[0].event(alert=scope_pb2.ScopeAlert(kind="overrun", detail="more was shown than the agent reads"))
        await pods[0].event(series=scope_pb2.ScopeSeries(name="loss", step=1))
        for each in (viewer, other):
            await each.event("series")

    stalls = [text["stall"] for text in viewer.texts if "stall" in text]
    assert sorted(stalls, key=lambda stall: stall["id"]) == [{"id": each, "reason": "overrun"} for each in (5, 6)]
    assert not [text for text in other.texts if "stall" in text]


async def test_an_alert_of_a_tap_says_which_site_it_is_of(scope: Served) -> None:
    async with attached(address(scope), ranks()) as pods, viewing(scope) as viewer:
        await viewer.subscribe(5, "layers[0].resid_post | token(0)")
        await pods[0].asked(1)
        [tap] = pods[0].demand.taps
        await pods[0].event(alert=scope_pb2.ScopeAlert(kind="overbudget", tap=tap.id, detail="taps take 9 %"))
        told = await viewer.event("alert")

    assert told["event"]["alert"]["site"] == "resid_post"


async def test_a_generation_is_compared_with_another(scope: Served) -> None:
    async with attached(address(scope), ranks()) as pods, viewing(scope) as viewer:
        await viewer.subscribe(1, "layers[0].resid_post | token(0) | diff(clean)", quantizer="f32")
        await pods[0].asked(1)
        await pods[0].step(1, request="clean")
        await pods[0].step(1, request="noisy")
        frame = await viewer.frame()

    assert frame.request == "noisy"
    assert frame.flags & Flag.DIFF
    assert not decode(frame).array.any()


async def test_frames_that_nobody_asked_for_or_that_are_none_are_dropped_and_counted(scope: Served) -> None:
    async with attached(address(scope), ranks()) as pods, viewing(scope) as viewer:
        await viewer.subscribe(1, "layers[0].resid_post | token(0)", quantizer="f32")
        await pods[0].asked(1)
        tap = pods[0].demand.taps[0].id
        for bad in ((tap, b"no frame"), (tap + 1, b""), (tap, b"\x0e\x5c\x01" + bytes(77))):
            await pods[0].call.write(scope_pb2.ScopeUp(frame=scope_pb2.ScopeFrame(tap=bad[0], frame=bad[1])))
        await pods[1].call.write(scope_pb2.ScopeUp(frame=next(iter(pods[0].frames(1)))))
        await pods[0].step(2)
        frame = await viewer.frame()

    dropped = "megatronapp_gateway_scope_frames_dropped_total"
    assert frame.step == 2
    assert sample(scope.registry, dropped, reason="malformed") == 2
    assert sample(scope.registry, dropped, reason="stale") == 2


async def test_ranks_that_come_back_are_asked_again(scope: Served) -> None:
    async with attached(address(scope), ranks()) as pods, viewing(scope) as viewer:
        await viewer.subscribe(1, "layers[0].resid_post | token(0)", quantizer="f32")
        await pods[0].asked(1)
        for rank in pods:
            rank.call.cancel()
        stall = await viewer.text("stall")
        async with attached(address(scope), ranks(attempt=2)) as again:
            await again[0].asked(1)
            await again[0].step(9)
            frame = await viewer.frame()

    assert stall == {"id": 1, "reason": "no_producer"}
    assert frame.step == 9
