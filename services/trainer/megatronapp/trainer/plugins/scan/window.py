"""Which steps are traced in detail, and how that changes at run time."""

from __future__ import annotations

from dataclasses import dataclass

from megatronapp.core.trace.values import Granularity, TraceControl


@dataclass(frozen=True, slots=True)
class Window:
    """Of every `interval` steps the first `continuous` are traced; steps count from 1."""

    enabled: bool
    interval: int = 5
    continuous: int = 2
    full: bool = True

    def contains(self, step: int) -> bool:
        return self.enabled and (step - 1) % self.interval < self.continuous

    @classmethod
    def of(cls, control: TraceControl) -> Window:
        """The window that the agent asks for: every field is set."""
        return cls(
            enabled=control.enabled,
            interval=max(control.interval, 1),
            continuous=control.continuous_iterations,
            full=control.granularity == Granularity.FULL,
        )

    def control(self) -> TraceControl:
        return TraceControl(
            enabled=self.enabled,
            interval=self.interval,
            continuous_iterations=self.continuous,
            granularity=Granularity.FULL if self.full else Granularity.BASE,
        )
