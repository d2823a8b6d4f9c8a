"""A pod speaks for its own job and run alone, and what it says is checked."""

from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from grpc import aio

from megatronapp.core.auth import PodClaim, PodGrant, Role
from megatronapp.core.errors import AuthError
from megatronapp.core.scope.sites import Axis, Rule, Site, Split
from megatronapp.core.tls import ClientTls
from megatronapp.v1 import scope_pb2, scope_pb2_grpc
from tests.integration.gateway.conftest import Served, Start
from tests.integration.gateway.scope.conftest import address, sample, with_pods
from tests.support.certificates import Authority
from tests.support.scope_pods import attached, ranks, refusal


class Reviewed:
    """A token that is of one job, as TokenReview finds it."""

    async def pod(self, token: str, claim: PodClaim) -> PodGrant:
        namespace, _, name = token.partition("/")
        if claim.job != f"{namespace}/{name}":
            raise AuthError(f"the token does not name job {claim.job}")
        return PodGrant(may_open_run=name != "old")

    async def reader(self, token: str) -> Role:
        raise AuthError("nobody")


async def test_another_jobs_pod_is_refused_though_its_own_token_is_good(start: Start) -> None:
    served = await start(authenticator=Reviewed())

    code, details = await refusal(address(served), ranks(token="team/other")[0])

    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "team/gpt" in details


async def test_a_run_belongs_to_the_job_that_it_was_first_heard_of_from(scope: Served) -> None:
    async with attached(address(scope), ranks()):
        code, _ = await refusal(address(scope), ranks(job="evil/gpt")[1])

    assert code is grpc.StatusCode.PERMISSION_DENIED
    refused = "megatronapp_gateway_scope_refused_streams_total"
    assert sample(scope.registry, refused, reason="forbidden") == 1


async def test_a_token_that_names_no_run_opens_none(start: Start) -> None:
    served = await start(authenticator=Reviewed())

    code, _ = await refusal(address(served), ranks(token="team/old", job="team/old")[0])

    assert code is grpc.StatusCode.PERMISSION_DENIED


async def test_a_wrong_token_is_refused(scope: Served) -> None:
    code, _ = await refusal(address(scope), ranks(token="wrong")[0])

    assert code is grpc.StatusCode.UNAUTHENTICATED


async def test_an_attempt_that_is_over_is_refused_and_a_newer_one_takes_its_place(scope: Served) -> None:
    async with attached(address(scope), ranks(attempt=1)) as old, attached(address(scope), ranks(attempt=2)):
        code, details = await refusal(address(scope), ranks(attempt=1)[0])

        assert await old[0].call.code() is grpc.StatusCode.OK
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "attempt 2" in details


@pytest.mark.parametrize(
    "site",
    [
        Site("../etc", (Axis("chan", 4),)),
        Site("x", (Axis("chan", 1 << 30),)),
        Site("x", (Axis("chan", 4, (Split(Rule.TENSOR, 5, 2),)),)),
    ],
)
async def test_a_site_that_can_not_be_is_refused(scope: Served, site: Site) -> None:
    rank = replace(ranks()[0], sites=[site])

    code, _ = await refusal(address(scope), rank)

    assert code is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_stream_begins_with_a_hello(scope: Served) -> None:
    async with aio.insecure_channel(address(scope)) as channel:
        call = scope_pb2_grpc.ScopeIngestStub(channel).Attach()
        await call.write(scope_pb2.ScopeUp(ack=scope_pb2.ScopeAck()))

        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("mutual", [False, True])
async def test_ranks_come_by_tls_where_the_gateway_has_a_certificate(
    start: Start, tmp_path: Path, mutual: bool
) -> None:
    authority = Authority(tmp_path / "tls")
    certificate, key = authority.certify("localhost", "server")
    own = [str(file) for file in authority.certify("rank", "rank")] if mutual else []
    clients = authority.ca_file if mutual else None
    served = await with_pods(start, tls_certificate_file=certificate, tls_key_file=key, tls_client_ca_file=clients)
    at = f"localhost:{served.gateway.grpc_port}"

    async with attached(at, ranks(), ClientTls(str(authority.ca_file), *own)):
        pass
    with pytest.raises(aio.AioRpcError) as caught:
        await refusal(at, ranks()[0])

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_more_ranks_than_are_served_are_refused(start: Start) -> None:
    served = await with_pods(start, scope_max_ranks=2)
    pods = ranks()
    async with attached(address(served), pods[:2]):
        code, _ = await refusal(address(served), pods[2])

    assert code is grpc.StatusCode.UNAVAILABLE
