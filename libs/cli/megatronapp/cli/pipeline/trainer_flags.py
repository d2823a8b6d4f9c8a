"""What the trainer must be given to run what `plan` has chosen."""

from __future__ import annotations

from pathlib import Path

from megatronapp.core.pipeline.simulator.planning import Candidate

ORDER_FILE = "FILE.csv"
"""Stands in a flag for the one that --csv writes."""


def trainer_flags(candidate: Candidate, csv: Path | None = None) -> list[str]:
    """csv: where the candidate's order has been written."""
    chunks = candidate.layout.chunks
    virtual = ["--num-virtual-stages-per-pipeline-rank", str(chunks)] if chunks > 1 else []
    return virtual if candidate.stock else [*virtual, "--use-dpp", *_policy(candidate, csv)]


def _policy(candidate: Candidate, csv: Path | None) -> list[str]:
    if candidate.cap is None:
        return ["--dpp-policy", "replay", "--dpp-order", str(csv or ORDER_FILE)]
    hint = "interleaved" if candidate.order == "1f1b" else candidate.order  # of one chunk they are the same
    split = [] if candidate.layout.split else ["--dpp-no-split"]
    return ["--dpp-policy", hint, "--dpp-cap", str(candidate.cap), *split]
