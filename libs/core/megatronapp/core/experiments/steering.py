"""Directions that steer a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from megatronapp.core.errors import UsageError
from megatronapp.core.experiments.passes import Experiment, Pass, scoring
from megatronapp.core.generation import Prompt
from megatronapp.core.scope.captures import Floats, Wanted


def mean_difference(towards: Sequence[Prompt], away: Sequence[Prompt], site: str, layer: int) -> Experiment[Floats]:
    """A steering vector: the mean of the site at the last token of each prompt, of the one set minus the other's."""
    means = []
    for prompts in (towards, away):
        if not prompts:
            raise UsageError("a steering vector needs prompts of both kinds")
        found = []
        for prompt in prompts:  # one by one: rows of unequal length have their last tokens in different passes
            outcome = yield Pass(scoring((prompt,)), (Wanted(site, (layer,), "last(1)"),))
            found.append(outcome.values[site, layer][0, -1])
        means.append(np.mean(found, axis=0))
    return np.asarray(means[0] - means[1])
