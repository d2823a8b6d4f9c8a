"""Absence: who may be late for the sake of ranks that did not tell of the step.

That nothing is heard of a rank is evidence about that rank alone. It may be the slow one, and then those that depend on
it are late without a fault of their own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from megatronapp.detector.steps import StepTable


def delayed(table: StepTable) -> npt.NDArray[np.bool_]:
    """One entry a rank. The stages of a replica wait for each other in every microbatch. All ranks may be late where it
    is not known where a missing one stands, and where replicas exchange tokens among their experts in every layer."""
    ranks = table.ranks
    if not table.missing and not table.unheard:
        return np.zeros(len(ranks), bool)
    absent = np.isin(ranks.rank, table.missing)
    if table.unheard or ranks.expert.any():
        return np.ones(len(ranks), bool)
    late: npt.NDArray[np.bool_] = np.isin(ranks.data, ranks.data[absent])
    return late
