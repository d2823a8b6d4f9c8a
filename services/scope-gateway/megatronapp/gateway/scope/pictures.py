"""Frames of ranks to pictures for viewers: what is looked at, as what each rank is asked, and what comes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from megatronapp.core.errors import DataError
from megatronapp.core.logging import get_logger
from megatronapp.core.scope.expression import Expression, ExpressionError
from megatronapp.core.scope.frame import MAX_SHARD_BYTES, Frame, Section, unpack
from megatronapp.core.scope.megascope import read
from megatronapp.core.scope.plan import Plan, PlanError, plan
from megatronapp.core.scope.quantize import Values
from megatronapp.core.scope.replicas import difference, must_agree
from megatronapp.core.scope.sites import resolved
from megatronapp.core.scope.stitch import needed, place_of, stitch
from megatronapp.gateway.metrics import ScopeMetrics
from megatronapp.gateway.scope.assembly import Picture, PictureKey
from megatronapp.gateway.scope.demand import Demand, Tap
from megatronapp.gateway.scope.limits import RefusedError
from megatronapp.gateway.scope.producers import Producer
from megatronapp.gateway.scope.streams import (
    CODECS,
    Recipient,
    Stream,
    StreamKey,
    Watcher,
    chosen_quantizer,
    fitted,
)
from megatronapp.gateway.scope.structure import LOGITS, Structure
from megatronapp.gateway.settings import GatewaySettings
from megatronapp.v1 import scope_pb2

log = get_logger(__name__)

UNLIMITED = 1 << 62
LEFT_OUT, OVERBUDGET, OVERRUN = "left_out", "overbudget", "overrun"


class Pictures:
    """Of one run. `producers` are its ranks that are connected, which others change."""

    def __init__(
        self,
        run: str,
        producers: Mapping[int, Producer],
        settings: GatewaySettings,
        metrics: ScopeMetrics,
        on_alert: Callable[[scope_pb2.ScopeAlert], None],
    ) -> None:
        self._run = run
        self._producers = producers
        self._settings = settings
        self._metrics = metrics
        self._on_alert = on_alert
        self._reported: set[tuple[str, int | None]] = set()
        """Sites and layers whose replicas were said to differ: once, while the ranks stay."""
        self.structure = Structure(producers)
        self._streams: dict[StreamKey, Stream] = {}
        self._demand = Demand()

    def add(self, stream: Stream, watcher: Watcher, recipient: Recipient) -> None:
        """Somebody looks at it from now on; what was newest is there at once."""
        self._streams[stream.key] = stream
        stream.recipients[watcher] = recipient
        for key, data in list(stream.latest.items()):
            recipient.slots.offer(watcher.subscription, key, data, throttled=False)

    def remove(self, stream: Stream, watcher: Watcher) -> None:
        stream.recipients.pop(watcher, None)
        if not stream.recipients:
            self._streams.pop(stream.key, None)

    def rebuild(self) -> None:
        """Ranks or their sites have changed: everything is planned anew."""
        self._reported.clear()
        for stream in self._streams.values():
            stream.plans.clear()
            try:
                key = stream.key
                stream.planned = self._planned(
                    stream.expression, stream.site, key.quantizer, generates=bool(key.request)
                )
                stream.layers = self._layers(stream.expression, stream.site)
            except DataError:
                stream.planned = None
        self.update()

    def update(self) -> None:
        """Ask each rank for what is looked at now."""
        self._demand.update(self._streams.values(), self.structure)
        for producer in self._producers.values():
            producer.ask(self._demand.of(producer.rank))

    def stream(self, asked: scope_pb2.ScopeSubscribe) -> tuple[Stream, Plan]:
        """The stream that gives what is asked for, and its plan. Raises RefusedError."""
        if asked.codec not in CODECS:
            raise RefusedError("invalid", "the codec is not known", "raw, triangle or zlib")
        try:
            expression = read(asked.expression)
            if not self.structure:
                raise RefusedError("no_producer", "no rank of this run is connected", "its pods come with --scope")
            site = self.structure.find(expression.selector.site)
            quantizer = chosen_quantizer(site, asked.quantizer)
            generates = bool(asked.request)
            planned = self._planned(expression, site, quantizer, generates=generates, max_bytes=UNLIMITED)
            expression = fitted(expression, planned.axes, planned.sizes, asked.width, asked.height)
            planned = self._planned(expression, site, quantizer, generates=generates)
            layers = self._layers(expression, site)
        except ExpressionError as error:
            raise RefusedError("syntax", error.text, error.hint, error.position) from error
        except PlanError as error:
            raise RefusedError(error.code, error.text, error.hint) from error
        except DataError as error:
            raise RefusedError("invalid", str(error)) from error
        key = StreamKey(str(expression), quantizer, asked.codec or "raw", asked.request)
        return self._streams.get(key) or Stream(key, expression, site, layers, planned), planned

    def subscribed(self, number: int, stream: Stream, planned: Plan) -> scope_pb2.ScopeSubscribed:
        quantizer = stream.key.quantizer
        return scope_pb2.ScopeSubscribed(
            id=number,
            expression=stream.key.expression,
            shape=planned.shape,
            axes=planned.axes,
            kind=planned.kind.name.lower(),
            quantizer=quantizer,
            frame_bytes=planned.frame_bytes(quantizer),
            cost_microseconds=planned.cost_microseconds(quantizer),
            frames_per_step=max(len(stream.layers), 1) * max(self.structure.model.microbatches, 1),
            statistics=planned.statistics,
        )

    def take_frame(self, producer: Producer, message: scope_pb2.ScopeFrame) -> None:
        """Into its picture; one that is complete goes out. A frame that nobody asked for, or that is none, is counted
        and dropped."""
        tap = self._demand.taps.get(message.tap)
        if tap is None or producer.rank not in tap.ranks:
            self._metrics.frames_dropped.labels("stale").inc()
            return
        try:
            frame = unpack(message.frame, MAX_SHARD_BYTES)
            due = self._placed(producer, tap, frame)
        except DataError as error:
            self._metrics.frames_dropped.labels("malformed").inc()
            log.warning("scope_frame_refused", run=self._run, rank=producer.rank, error=str(error))
            return
        self._metrics.frames.inc()
        for picture in due:
            self._send(tap, picture)

    def take_alert(self, rank: int, alert: scope_pb2.ScopeAlert) -> None:
        """Who looks at a tap of which a rank has left something out, or that it has turned off, is told so; also who
        may have missed something that the rank's agent lost. The alert's site becomes the tap's."""
        if alert.kind not in (LEFT_OUT, OVERBUDGET, OVERRUN):
            return
        if tap := self._demand.taps.get(alert.tap):
            alert.site = tap.site
            concerned = [tap]
        else:
            lost = alert.kind == OVERRUN and not alert.tap  # nobody knows of which tap it was
            concerned = [tap for tap in self._demand.taps.values() if lost and rank in tap.ranks]
        for stream in {stream for tap in concerned for stream in tap.streams}:
            stream.warn(alert.kind)

    def send_overdue(self, now: float) -> None:
        """What waits for shards for too long goes out as it is."""
        for tap in list(self._demand.taps.values()):
            for picture in tap.assembly.overdue(now):
                self._send(tap, picture)

    def _placed(self, producer: Producer, tap: Tap, frame: Frame) -> list[Picture]:
        """Raises DataError for a frame that does not fit what its rank has."""
        generates = bool(frame.request)
        site = producer.site(LOGITS if tap.lens else tap.site, generates=generates)
        if site is None:
            raise DataError(f"rank {producer.rank} has no site {tap.site}")
        if tap.layers and frame.layer not in tap.layers:
            raise DataError(f"layer {frame.layer} of {tap.site} was not asked for")
        if not tap.lens and tap.layers and frame.layer not in site.layers:
            raise DataError(f"rank {producer.rank} has no layer {frame.layer}")
        given = frame.sections.get(Section.EXTENT)
        extents = tuple(axis.size for axis in site.axes)
        if given is not None:
            extents = tuple(int(each) for each in np.frombuffer(given[: len(given) // 4 * 4], "<u4"))
        axes = resolved(site.axes, extents)
        made = self._plan(tap, generates, extents)
        piece = place_of(made, axes, producer.placement.data)
        if piece is None:
            return []
        key = PictureKey(frame.layer, frame.step, frame.microbatch, frame.request, extents)
        return tap.assembly.add(key, piece, frame, needed(made), time.monotonic(), generates=generates)

    def _plan(self, tap: Tap, generates: bool, extents: tuple[int, ...], stream: Stream | None = None) -> Plan:
        stream = stream or tap.streams[0]
        axes = self.structure.axes(tap.site, generates=generates)
        return stream.plan_of(axes, self.structure.axes(LOGITS, generates=generates), extents)

    def _send(self, tap: Tap, picture: Picture) -> None:
        for stream in tap.streams:
            try:
                made = self._plan(tap, picture.generates, picture.key.extents, stream)
                self._compare_replicas(stream.site, picture, made)
                data = stream.encode(picture, made, self._settings.scope_max_frame_bytes)
            except DataError as error:
                self._metrics.frames_dropped.labels("unfit").inc()
                stream.warn(LEFT_OUT)
                log.warning("scope_picture_refused", run=self._run, site=tap.site, error=str(error))
                continue
            if data is not None:
                missed = stream.deliver(picture, data)
                self._metrics.frames_dropped.labels("slow_viewer").inc(missed)

    def _compare_replicas(self, site: str, picture: Picture, made: Plan) -> None:
        """Tell of parameters that differ, which are corrupt on some replica. Raises DataError."""
        key = picture.key
        if not made.replicas or not must_agree(site) or (site, key.layer) in self._reported:
            return
        result, _ = stitch(made, picture.results())
        if isinstance(result, Values) and (found := difference(result)):
            self._reported.add((site, key.layer))
            self._on_alert(
                scope_pb2.ScopeAlert(kind="replica_difference", site=site, layer=key.layer, step=key.step, detail=found)
            )

    def _planned(
        self, expression: Expression, site: str, quantizer: str, *, generates: bool, max_bytes: int = 0
    ) -> Plan:
        """Raises PlanError."""
        return plan(
            expression,
            site,
            self.structure.axes(site, generates=generates),
            logits=self.structure.axes(LOGITS, generates=generates),
            expected=self.structure.expected(),
            max_bytes=max_bytes or self._settings.scope_max_frame_bytes,
            quantizer=quantizer,
            replicas=self.structure.replicas,
        )

    def _layers(self, expression: Expression, site: str) -> tuple[int, ...]:
        """Raises PlanError."""
        layered = any(found.layers for found in self.structure.sites() if found.name == site)
        chosen = tuple(expression.selector.numbers(self.structure.layers()))
        if layered and not chosen:
            raise PlanError("invalid", f"{site} belongs to layers", f"write layers[*].{site}")
        if chosen and not layered:
            raise PlanError("invalid", f"{site} belongs to no layer", f"write {site}")
        return chosen
