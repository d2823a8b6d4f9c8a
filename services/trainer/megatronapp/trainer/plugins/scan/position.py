"""Which phase the training thread is in; phases nest."""

from __future__ import annotations

from dataclasses import dataclass

from megatronapp.core.trace.values import Phase


@dataclass(slots=True)
class Position:
    phases: tuple[Phase, ...] = (Phase.START,)
    """Innermost last; none in ordinary steps."""

    @property
    def phase(self) -> Phase:
        return self.phases[-1] if self.phases else Phase.STEP

    def enter(self, phase: Phase) -> None:
        self.phases = (*self.phases, phase)

    def leave(self, phase: Phase) -> None:
        """The innermost of this kind is over, and what it holds; one that was never entered is left alone."""
        phases = self.phases
        if phase in phases:
            self.phases = phases[: len(phases) - 1 - phases[::-1].index(phase)]
