"""What NCCL would tell of a simulated job: rings between nodes, whose proxies wait; within nodes NVLink."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bench.scale.layout import Layout
from bench.scale.seeds import generator
from megatronapp.detector.steps import StepTable
from megatronapp.v1 import trace_pb2

NETWORK, NVLINK = 40e9, 300e9
"""Bus bandwidth, bytes a second."""
NOISE, SEND_NOISE = 0.03, 0.10
"""Standard deviations of logs, a step."""
GRADIENTS, ACTIVATIONS = 1 << 28, 1 << 25
MESSAGES = 8
"""Of each stage to the next, in a step."""
SEND_SECONDS = 0.3 / NETWORK
"""That a proxy waits for the end of a byte's sending."""
NS = 1e9


@dataclass(frozen=True)
class NcclFault:
    """From `step` to before `until`. nic: what the ranks send takes `size` times as long; link: what the first of them
    sends to the second; late: they begin operations between nodes `size` seconds after the others; stalled: a send
    waits `size` seconds in each step."""

    kind: str
    ranks: tuple[int, ...]
    size: float
    step: int
    until: int = 1 << 30

    def acts(self, step: int) -> bool:
        return self.step <= step < self.until


class NcclRecords:
    """The same layout, faults and seed give the same tallies."""

    def __init__(self, layout: Layout, faults: tuple[NcclFault, ...] = (), seed: int = 0) -> None:
        self._layout, self._faults = layout, faults
        self._random, self._of_messages = generator(seed, "nccl"), generator(seed, "nccl messages")
        self._groups = {
            kind: sorted({ranks for rank in range(layout.world) for of, ranks in layout.groups(rank) if of == kind})
            for kind in {kind for rank in range(layout.world) for kind, _ in layout.groups(rank)}
        }

    def recorded(self, table: StepTable) -> StepTable:
        """The step, with what NCCL told in it."""
        return replace(table, nccl=tuple(self.of_step(table.step).items()))

    def of_step(self, step: int) -> dict[int, list[trace_pb2.NcclTally]]:
        """By rank."""
        tallies: dict[int, list[trace_pb2.NcclTally]] = {rank: [] for rank in range(self._layout.world)}
        nic, late = self._sizes("nic", step, 1.0), self._sizes("late", step, 0.0)
        stalled = self._sizes("stalled", step, 0.0)
        for kind, groups in self._groups.items():
            for number, ranks in enumerate(groups):
                if kind in ("tp", "dp"):
                    hash_ = (hash_of(kind) << 32) + number
                    self._collective(tallies, step, ranks, hash_, nic, late, stalled)
        self._messages(tallies, step, nic)
        return tallies

    def _messages(self, tallies: dict[int, list[trace_pb2.NcclTally]], step: int, nic: np.ndarray) -> None:
        """Each stage's with the next, both ways; over the network, as stages are nodes of their own."""
        links = {fault.ranks: fault.size for fault in self._faults if fault.kind == "link" and fault.acts(step)}
        across = self._layout.world // self._layout.pp
        for column in range(across if self._layout.pp > 1 and across % self._layout.ranks_per_node == 0 else 0):
            ranks = range(column, self._layout.world, across)
            for sender, receiver in ((a, b) for a in ranks for b in (a - across, a + across) if b in ranks):
                slower = nic[sender] * links.get((sender, receiver), 1.0)
                noise, other = np.exp((SEND_NOISE, NOISE) * self._of_messages.standard_normal(2))
                waited = MESSAGES * ACTIVATIONS * SEND_SECONDS * slower * noise
                took = ACTIVATIONS / NETWORK * slower * other
                for rank, peer in ((sender, receiver), (receiver, sender)):
                    tallies[rank].append(
                        trace_pb2.NcclTally(
                            seat=trace_pb2.NcclSeat(
                                hash=(hash_of("pp") << 32) + column,
                                size=self._layout.pp,
                                place=rank // across,
                                timed=True,
                                peer=peer // across,
                            ),
                            sending=rank == sender,
                            operation="send" if rank == sender else "recv",
                            protocol="SIMPLE",
                            size_log2=ACTIVATIONS.bit_length() - 1,
                            count=MESSAGES,
                            fastest_bytes=ACTIVATIONS,
                            fastest_ns=int(took * NS),
                            network_ns=int(waited * NS) if rank == sender else 0,
                            sent_bytes=MESSAGES * ACTIVATIONS if rank == sender else 0,
                        )
                    )

    def _sizes(self, kind: str, step: int, usual: float) -> np.ndarray:
        sizes = np.full(self._layout.world, usual)
        for fault in self._faults:
            if fault.kind == kind and fault.acts(step):
                sizes[list(fault.ranks)] = fault.size
        return sizes

    def _collective(
        self,
        tallies: dict[int, list[trace_pb2.NcclTally]],
        step: int,
        ranks: tuple[int, ...],
        hash_: int,
        nic: np.ndarray,
        late: np.ndarray,
        stalled: np.ndarray,
    ) -> None:
        own = np.array(ranks)
        far = len(set((own // self._layout.ranks_per_node).tolist())) > 1
        size = GRADIENTS if far else ACTIVATIONS
        bytes_sent = size * 2 * (len(own) - 1) / len(own)
        slowest = float(nic[own].max()) if far else 1.0
        took = bytes_sent / (NETWORK if far else NVLINK) * slowest * np.exp(NOISE * self._random.standard_normal())
        took += float(stalled[own].max()) if far else 0.0
        behind = np.abs(self._random.standard_normal(len(own))) * 2e-4 + (late[own] if far else 0.0)
        duration = ((took + behind.max() - behind) * NS).astype(np.int64)
        noise = np.exp(SEND_NOISE * self._random.standard_normal(len(own)))
        sending = (bytes_sent * SEND_SECONDS * nic[own] * noise + stalled[own]) * NS if far else np.zeros(len(own))
        waiting = (took - bytes_sent / NETWORK) * NS if far else 0.0
        for place, rank in enumerate(ranks):
            tallies[rank].append(
                trace_pb2.NcclTally(
                    seat=trace_pb2.NcclSeat(hash=hash_, size=len(ranks), place=place, timed=True),
                    operation="all_reduce",
                    algorithm="RING",
                    protocol="SIMPLE",
                    size_log2=size.bit_length() - 1,
                    count=4,
                    fastest_bytes=size,
                    fastest_ns=int(duration[place]),
                    gpu_ns=int(max(waiting, 0)),
                    data_ns=int(max(waiting, 0)),
                    network_ns=int(sending[place]),
                    sent_bytes=int(bytes_sent) if far else 0,
                    numbers=[step],
                    durations_ns=[int(duration[place])],
                )
            )


def hash_of(kind: str) -> int:
    return int.from_bytes(kind.encode().ljust(4, b"\0")[:4], "big")
