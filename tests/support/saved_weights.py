"""A checkpoint's weights, whole and by their global names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from megatronapp.trainer.generate.arguments import Source
from tests.support.forked import run_forked


def saved_weights(folder: Path) -> dict[str, npt.NDArray[np.float32]]:
    [weights] = run_forked(1, _loaded_weights, folder)
    return weights


def _loaded_weights(folder: Path) -> dict[str, npt.NDArray[np.float32]]:
    from megatronapp.trainer.generate.loaded import loaded
    from megatronapp.trainer.plugins.scope.weights import weights

    with loaded(Source(folder=folder)) as generator:
        chunks = generator.engine.stages.chunks
        return {each.name: each.parameter.detach().float().numpy().copy() for each in weights(chunks)}
