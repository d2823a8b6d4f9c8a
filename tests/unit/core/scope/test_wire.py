"""Sites come through messages as they were, and hostile ones are refused."""

import pytest

from megatronapp.core.errors import DataError
from megatronapp.core.scope.sites import Coordinates, Model, standard_sites
from megatronapp.core.scope.wire import site_from_proto, site_to_proto, sites_from_proto
from megatronapp.v1 import scope_pb2

MODEL = Model(layers=2, hidden=8, heads=4, head_channels=2, mlp_channels=16, vocabulary=10, gated=True, experts=2)


def test_sites_come_back() -> None:
    at = Coordinates(tensor=(1, 2), data=(0, 2), context=(1, 2), expert=(0, 2), sequence_parallel=True, layers=(0, 1))
    sites = standard_sites(MODEL, at, "bf16")

    assert sites_from_proto([site_to_proto(site) for site in sites]) == sites


@pytest.mark.parametrize(
    "wrong",
    [
        scope_pb2.ScopeSite(name="x", passes=["sideways"]),
        scope_pb2.ScopeSite(
            name="x",
            axes=[scope_pb2.ScopeAxis(name="chan", size=4, splits=[scope_pb2.ScopeSplit(rule="random", parts=1)])],
        ),
        scope_pb2.ScopeSite(name="x", axes=[scope_pb2.ScopeAxis(name="chan", size=4_000_000_000)]),
        scope_pb2.ScopeSite(
            name="x",
            axes=[
                scope_pb2.ScopeAxis(name=name, size=4, splits=[scope_pb2.ScopeSplit(rule="tensor", parts=4000)])
                for name in ("chan", "head")
            ],
        ),
    ],
)
def test_a_site_without_a_rule_or_beyond_reason_is_refused(wrong: scope_pb2.ScopeSite) -> None:
    with pytest.raises(DataError):
        site_from_proto(wrong)


def test_more_sites_than_a_model_has_are_refused() -> None:
    with pytest.raises(DataError, match="at most 4096"):
        sites_from_proto([scope_pb2.ScopeSite(name="x")] * 5000)
