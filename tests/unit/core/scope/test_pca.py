"""Principal components are NumPy's; a pinned basis stays as it was first found."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from megatronapp.core.scope.pca import MAX_ROWS, Pca, basis_of

RANDOM = np.random.default_rng(5)
FIRST = RANDOM.normal(size=(20, 6)).astype(np.float32) * np.arange(1, 7, dtype=np.float32)
SECOND = RANDOM.normal(size=(9, 6)).astype(np.float32) * np.arange(6, 0, -1, dtype=np.float32)


def labels(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    return np.arange(len(rows), dtype=np.uint32)[:, None]


def of(*frames: npt.NDArray[np.float32], pinned: bool = False) -> Pca:
    pca = Pca(2, pinned)
    for frame in frames:
        pca.add(frame, labels(frame))
        pca.projected()
    return pca


def test_a_basis_is_that_of_numpys_covariance_with_its_shares_of_the_variance() -> None:
    basis = basis_of(FIRST, 2)

    shares, vectors = np.linalg.eigh(np.cov(FIRST.T.astype(float)))
    assert np.allclose(basis.explained, shares[::-1][:2] / shares.sum())
    assert np.allclose(np.abs(basis.components), np.abs(vectors[:, ::-1].T[:2]), atol=1e-6)
    assert all(component[np.abs(component).argmax()] > 0 for component in basis.components)


def test_a_free_basis_is_that_of_all_rows_and_a_pinned_one_that_of_the_first_frame() -> None:
    free, pinned = of(FIRST, SECOND).projected(), of(FIRST, SECOND, pinned=True).projected()

    assert free is not None
    assert pinned is not None
    assert np.allclose(free[2].components, basis_of(np.concatenate((FIRST, SECOND)), 2).components)
    assert np.array_equal(pinned[2].components, basis_of(FIRST, 2).components)
    assert np.allclose(pinned[0][len(FIRST) :], basis_of(FIRST, 2).project(SECOND))


def test_rows_that_are_no_numbers_are_left_out_with_their_labels() -> None:
    broken = FIRST.copy()
    broken[3, 2] = np.nan

    found = of(broken).projected()

    assert found is not None
    assert found[1][:, 0].tolist() == [row for row in range(len(FIRST)) if row != 3]


def test_rows_of_other_channels_begin_anew_and_the_oldest_go() -> None:
    long = np.tile(FIRST, (MAX_ROWS // len(FIRST), 1))

    narrow, many = of(FIRST, SECOND[:, :4]).projected(), of(FIRST, long, SECOND).projected()

    assert narrow is not None
    assert many is not None
    assert len(narrow[0]) == len(SECOND)
    assert len(many[0]) == len(long) + len(SECOND)


def test_one_row_alone_has_no_components() -> None:
    assert of(FIRST[:1]).projected() is None
