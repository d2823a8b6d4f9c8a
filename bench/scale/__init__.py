"""The proving ground: simulated jobs of 8 to 16,384 ranks that speak the real protocol, healthy and faulty ones, and
what the detector says of them.

    layout, schedule        where ranks stand, and which pass of a pipeline waits for which
    noise, workload         how healthy ranks differ: device, jitter, drift, bursts; sequences and experts
    faults                  when, whom, how much, what kind, and which verdict is right
    timeline, rows, job     a step: who computes, who waits for whom, and the rows that each rank would send
    protocol, delivery      the same as messages of the real protocol, and what becomes of them on their way
    feeds, realtime         into the engine in this process; through collector, Redis and detector
    scoring, intervals      pages against truth
    scenarios, trials       what is run, in suites; report, cli: what is printed
    speed, hangs            how fast steps are judged; how soon a rank that stops is named
    recording, record       what a real run adds

docs/proving-ground.md explains the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; it takes in more than who needs a Layout alone."""
    from bench.scale import cli

    return cli.main(argv)


__all__ = ["main"]
