"""What this rank shows: the taps that it was asked for, their readers, and the frames that come of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from megatronapp.core.errors import DataError
from megatronapp.core.logging import get_logger
from megatronapp.core.scope.sites import Site
from megatronapp.trainer.plugins.channel import AgentChannel
from megatronapp.trainer.plugins.scope.frames import FrameQueue
from megatronapp.trainer.plugins.scope.parameters import Held, generating, with_sites
from megatronapp.trainer.plugins.scope.places import Spot
from megatronapp.trainer.plugins.scope.shards import Shard
from megatronapp.trainer.plugins.scope.spelling import Speller
from megatronapp.trainer.plugins.scope.taps import Capture, Reader
from megatronapp.trainer.plugins.scope.watch import GRADIENT, MAX_TAPS, Tap, TapReader

if TYPE_CHECKING:
    from typing_extensions import Buffer

log = get_logger(__name__)

PATIENCE = 3
"""Watched steps that may take more than allowed, one after the other, before a tap is turned off."""


class Viewer:
    """Its taps change between two steps alone."""

    def __init__(
        self,
        spots: Sequence[Spot],
        shard: Shard,
        channel: AgentChannel,
        say: Callable[[dict[str, Any]], None],
        rank: int,
        *,
        held: Sequence[Held] = (),
        weights_stay: bool = True,
        speller: Speller | None = None,
    ) -> None:
        """`weights_stay`: at a step's begin they are where the step will find them; else a training shows none. At the
        begin of a generation's pass they always are."""
        self._weights_stay = weights_stay
        self._spots = spots
        self._shard = shard
        self._held: list[Held] = []
        self._held_of: dict[TapReader, list[Held]] = {}
        self._channel = channel
        self._say = say
        self._rank = rank
        self._speller = speller
        self.queue = FrameQueue(self._write)
        self.readers: list[TapReader] = []
        self.hold(held)
        self._most_ratio = 0.0
        self._over = 0
        self.overhead_ratio = 0.0
        self._begun = 0.0
        self._reported: set[tuple[object, ...]] = set()

    def hold(self, held: Sequence[Held]) -> None:
        """These are shown as well: parameters and states of the optimizer."""
        self._held += held
        every = (*self._spots, *(each.spot for each in self._held))
        self._order = {(spot.site, spot.layer): number for number, spot in enumerate(every)}
        self._training = with_sites(self._shard, self._held, weights=self._weights_stay)
        self._generating = generating(self._shard, self._held)
        self._choose()

    def show(self, demand: Mapping[str, Any], step_seconds: float) -> None:
        """A `ScopeDemand`, in place of the one before. A tap that can't be read is told of and left out."""
        taps = demand.get("taps", [])
        limit = demand.get("max_overhead_ratio", 0.0)
        self._most_ratio = float(limit) if type(limit) in (int, float) else 0.0
        self._over = 0
        self._reported.clear()
        self.readers = []
        for document in taps[:MAX_TAPS] if isinstance(taps, list) else ():
            try:
                tap = Tap.parse(document, step_seconds)
            except DataError as error:
                self._report_failure(document.get("id", 0) if isinstance(document, dict) else 0, "invalid", str(error))
                continue
            if tap.lens is None:
                self.readers.append(TapReader(tap, self.queue, self._speller))
        self._choose()

    def _choose(self) -> None:
        """Once, not in each step: there are many parameters."""
        layers = self._shard.model.layers
        self._held_of = {
            reader: [each for each in self._held if not reader.tap.gradient and reader.tap.chooses(each.spot, layers)]
            for reader in self.readers
        }
        self._holds = any(self._held_of.values())

    def wanted(self, spot: Spot) -> tuple[list[Reader], list[Reader]]:
        """Readers of the value and of the gradient there."""
        layers = self._shard.model.layers
        chosen = [reader for reader in self.readers if reader.tap.chooses(spot, layers)]
        values: list[Reader] = [reader.read for reader in chosen if not reader.tap.gradient]
        gradients: list[Reader] = [reader.read for reader in chosen if reader.tap.gradient and not spot.place.computed]
        return values, gradients

    def step_begin(self, step: int, *, before_pause: bool = False) -> bool:
        """Returns whether anything of this step is shown."""
        self._begun = time.perf_counter()
        for reader in self.readers:
            reader.due = reader.tap.of(None) and reader.tap.due(step, unlimited=before_pause)
        if self._holds:
            self._show_held(self._training, step)
        return any(reader.due for reader in self.readers)

    def pass_begin(self, request: str, position: int) -> bool:
        """The same of a generation's pass, of which nothing is left out to save time."""
        self._begun = time.perf_counter()
        for reader in self.readers:
            reader.due = reader.tap.of(request) and reader.tap.due(position, unlimited=True)
        if self._holds:
            self._show_held(self._generating, position, request)
        return any(reader.due for reader in self.readers)

    @torch.no_grad()
    def _show_held(self, shard: Shard, step: int, request: str | None = None) -> None:
        """As it is when the step, or the pass, begins; a storage perturbation comes after it."""
        for reader in self.readers:
            for each in self._held_of[reader] if reader.due else ():
                if each.spot.site in shard.sites and (shown := each.read()) is not None:
                    reader.read(Capture(each.spot, shown.value, shard, step, request=request, absent=shown.absent))

    def step_end(self, *, wait: bool = False) -> bool:
        """Write what has come, `wait`: all. Returns whether a tap was turned off: it takes too long."""
        begin = time.perf_counter()
        self.queue.flush(wait=wait)
        now = time.perf_counter()
        spent = now - begin + sum(reader.seconds for reader in self.readers)
        self.overhead_ratio = spent / max(now - self._begun - spent, 1e-9)
        turned_off = self._judge()
        self._report_alerts()
        for reader in list(self.readers):
            reader.seconds = 0.0
            if reader.failed:
                self.readers.remove(reader)
                turned_off = True
                self._report_failure(reader.tap.id, "invalid", reader.failed)
        return turned_off

    def flush(self) -> None:
        """All that the device still has."""
        self.queue.flush(wait=True)
        self._report_alerts()

    def described(self, *, trains: bool, generates: bool) -> dict[str, Any]:
        """What can be looked at here (`ScopeHello`), as plain values."""
        here = {spot.site for spot in (*self._spots, *(each.spot for each in self._held))}
        here |= {GRADIENT + spot.site for spot in self._spots if not spot.place.computed}
        shards = [*((self._training,) if trains else ()), *((self._generating,) if generates else ())]
        sites = [site for shard in shards for name, site in shard.sites.items() if name in here]
        model = self._shard.model
        return {
            "sites": [described(site) for site in sites],
            "model": {
                "layers": model.layers,
                "hidden": model.hidden,
                "heads": model.heads,
                "query_groups": model.query_groups,
                "head_channels": model.head_channels,
                "mlp_channels": model.mlp_channels,
                "experts": model.experts,
                "padded_vocabulary": model.vocabulary,
                "sequence_length": model.tokens,
                "micro_batch_size": model.batch,
                "sequence_parallel": self._shard.at.sequence_parallel,
            },
        }

    def _write(self, descriptor: bytes, frame: Buffer) -> None:
        if self._channel.line is not None:
            self._channel.line.write_frame(descriptor, frame)

    def _judge(self) -> bool:
        """A tap is turned off when steps take longer for the taps than was allowed; the most expensive one."""
        if not self._most_ratio or self.overhead_ratio <= self._most_ratio:
            self._over = 0
            return False
        self._over += 1
        if self._over < PATIENCE:
            return False
        self._over = 0
        worst = max(self.readers, key=lambda reader: reader.seconds)
        self.readers.remove(worst)
        detail = f"taps take {self.overhead_ratio:.1%} of a step; {self._most_ratio:.1%} are allowed"
        self._report_failure(worst.tap.id, "overbudget", detail)
        return True

    def _report_alerts(self) -> None:
        """Each once while the taps stay; of numbers that are none the first place alone, in the order of the pass."""
        found = [(capture, alert) for reader in self.readers for capture, alert in reader.alerts]
        for reader in self.readers:
            reader.alerts = []
        found.sort(key=lambda each: self._place(each[0]))
        self._report_left_out()
        for capture, alert in found:
            spot = capture.spot
            key = ("nonfinite",) if alert.kind == "nonfinite" else (alert.kind, spot.site, spot.layer, capture.gradient)
            if key in self._reported:
                continue
            self._reported.add(key)
            site = GRADIENT + spot.site if capture.gradient else spot.site
            about = {"site": site, "step": capture.step, "microbatch": capture.microbatch, "rank": self._rank}
            layer = {} if spot.layer is None else {"layer": spot.layer}
            self._say({"event": {"alert": {"kind": alert.kind, "detail": alert.detail, **about, **layer}}})

    def _report_left_out(self) -> None:
        """Of each tap once, while the taps stay: what there was no room for."""
        sites = {reader.tap.id: reader.tap.expression.selector.site for reader in self.readers}
        left_out, self.queue.left_out = self.queue.left_out, []
        for address, why in left_out:
            if (key := ("left_out", address.tap)) in self._reported:
                continue
            self._reported.add(key)
            about = {"site": sites.get(address.tap, ""), "step": address.step, "tap": address.tap, "rank": self._rank}
            layer = {} if address.layer is None else {"layer": address.layer}
            self._say({"event": {"alert": {"kind": "left_out", "detail": why, **about, **layer}}})

    def _place(self, capture: Capture) -> tuple[int, ...]:
        """Where it comes in the passes of a step."""
        at = self._order[capture.spot.site, capture.spot.layer]
        return capture.step, capture.microbatch, capture.gradient, -at if capture.gradient else at

    def _report_failure(self, tap: Any, kind: str, detail: str) -> None:
        log.warning("scope_tap_off", tap=tap, kind=kind, reason=detail)
        number = tap if type(tap) is int and 0 <= tap < 1 << 32 else 0
        self._say({"event": {"alert": {"kind": kind, "tap": number, "detail": detail, "rank": self._rank}}})


def described(site: Site) -> dict[str, Any]:
    """A `ScopeSite`."""
    return {
        "name": site.name,
        "layers": list(site.layers),
        "axes": [asdict(axis) for axis in site.axes],
        "dtype": site.dtype,
        "passes": [str(each) for each in site.passes],
    }
