"""The size of the global batch while it grows: `--rampup-batch-size <start> <increment> <samples>`, as in Megatron-LM.
Arithmetic, no torch."""

from __future__ import annotations

from dataclasses import dataclass

from megatronapp.core.errors import UsageError
from megatronapp.trainer.config import TrainingConfig


@dataclass(frozen=True, kw_only=True)
class BatchRamp:
    """From `start` to `end` in steps of `increment`, spread evenly over `samples`. All in sequences."""

    start: int
    increment: int
    samples: int
    end: int

    @classmethod
    def of(cls, training: TrainingConfig, global_batch_size: int) -> BatchRamp:
        """Without the flag: the same size all the time. Raises UsageError."""
        given = training.rampup_batch_size
        if not given:
            return cls(start=global_batch_size, increment=1, samples=0, end=global_batch_size)
        if len(given) != 3:
            raise UsageError("--rampup-batch-size takes three numbers: the first size, the increment, and the samples")
        start, increment, samples = given
        if not 0 < start <= global_batch_size or increment < 1 or samples < 0:
            raise UsageError(
                f"--rampup-batch-size {start} {increment} {samples} does not lead to --global-batch-size "
                f"{global_batch_size}"
            )
        if (global_batch_size - start) % increment:
            raise UsageError(
                f"--rampup-batch-size: {start} reaches --global-batch-size {global_batch_size} in no whole number of "
                f"steps of {increment}"
            )
        return cls(start=start, increment=increment, samples=samples, end=global_batch_size)

    @property
    def sizes(self) -> range:
        """All that come."""
        return range(self.start, self.end + 1, self.increment)

    def size_at(self, consumed_samples: int) -> int:
        """The batch of the step before which so many samples were read."""
        if self.start == self.end or consumed_samples > self.samples:
            return self.end
        grown = int(consumed_samples / (self.samples / (len(self.sizes) - 1))) if self.samples else len(self.sizes)
        return min(self.start + grown * self.increment, self.end)
