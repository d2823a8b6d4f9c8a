"""--faults-share 0.25 plays a drawn quarter of the matrix; --faults-seed draws the same again."""

from __future__ import annotations

import secrets

import pytest

from tests.faults.cases import CLEAN, FAULTY, drawn


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fault matrix")
    group.addoption("--faults-share", type=float, default=1.0, help="share of the matrix to play")
    group.addoption("--faults-seed", type=int, default=secrets.randbelow(10**6), help="which cases are drawn")


def share_and_seed(config: pytest.Config) -> tuple[float, int]:
    """The whole matrix where this folder was not named, so that pytest does not know of the options."""
    return config.getoption("--faults-share", default=1.0), config.getoption("--faults-seed", default=0)


def pytest_report_header(config: pytest.Config) -> str:
    share, seed = share_and_seed(config)
    return f"fault matrix: --faults-share {share} --faults-seed {seed}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    share, seed = share_and_seed(metafunc.config)
    for fixture, cases in (("clean_case", CLEAN), ("faulty_case", FAULTY)):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, drawn(cases, share, seed), ids=lambda case: case.name)
