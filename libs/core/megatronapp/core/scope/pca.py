"""Principal components of rows that come one frame after the other."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

MAX_ROWS = 4096
MAX_BYTES = 64 << 20
"""Of the rows that are kept; the oldest go."""


@dataclass(frozen=True, slots=True)
class Basis:
    mean: npt.NDArray[np.float64]
    components: npt.NDArray[np.float64]
    """[components, channels], orthonormal; of each the entry of largest magnitude is positive."""
    explained: npt.NDArray[np.float64]
    """Share of the variance, of each component."""

    def project(self, rows: Floats) -> Floats:
        return ((rows - self.mean) @ self.components.T).astype(np.float32)


def basis_of(rows: Floats, components: int) -> Basis:
    """As NumPy's SVD of the centred rows has it. Fewer rows than components leave the others zero."""
    mean = rows.mean(0, dtype=np.float64)
    _, values, vectors = np.linalg.svd(rows - mean, full_matrices=False)
    found = np.zeros((components, rows.shape[1]))
    count = min(components, len(vectors))
    found[:count] = vectors[:count]
    largest = np.take_along_axis(found, np.abs(found).argmax(1)[:, None], 1)
    variance = np.zeros(components)
    variance[:count] = values[:count] ** 2
    return Basis(mean, found * np.where(largest < 0, -1, 1), variance / max(float((values**2).sum()), 1e-300))


@dataclass
class Pca:
    """Rows of all frames so far and their basis: of all, or pinned as it was first found."""

    components: int
    pinned: bool
    _rows: list[Floats] = field(default_factory=list)
    _labels: list[npt.NDArray[np.uint32]] = field(default_factory=list)
    basis: Basis | None = None

    def add(self, rows: Floats, labels: npt.NDArray[np.uint32]) -> None:
        """[rows, channels]; rows with values that are not finite are left out. Other channels begin anew."""
        usable = np.isfinite(rows).all(1)
        if self._rows and self._rows[0].shape[1] != rows.shape[1]:
            self._rows, self._labels, self.basis = [], [], None
        if usable.any():
            self._rows.append(rows[usable])
            self._labels.append(labels[usable])
        while len(self._rows) > 1 and not self._fits():
            self._rows.pop(0)
            self._labels.pop(0)

    def projected(self) -> tuple[Floats, npt.NDArray[np.uint32], Basis] | None:
        """All rows, their labels and the basis; None while there are fewer than two."""
        if not self._rows or sum(map(len, self._rows)) < 2:
            return None
        rows, labels = np.concatenate(self._rows)[-MAX_ROWS:], np.concatenate(self._labels)[-MAX_ROWS:]
        if self.basis is None or not self.pinned:
            self.basis = basis_of(rows, self.components)
        return self.basis.project(rows), labels, self.basis

    def _fits(self) -> bool:
        return sum(map(len, self._rows)) <= MAX_ROWS and sum(rows.nbytes for rows in self._rows) <= MAX_BYTES
