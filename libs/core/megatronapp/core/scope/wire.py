"""Sites and models ⇄ messages."""

from __future__ import annotations

from collections.abc import Iterable

from megatronapp.core.errors import DataError
from megatronapp.core.scope.sites import MAX_SITES, Axis, Pass, Rule, Site, Split
from megatronapp.v1 import scope_pb2


def site_to_proto(site: Site) -> scope_pb2.ScopeSite:
    axes = [
        scope_pb2.ScopeAxis(
            name=axis.name,
            size=axis.size,
            splits=[
                scope_pb2.ScopeSplit(rule=split.rule.value, part=split.part, parts=split.parts) for split in axis.splits
            ],
        )
        for axis in site.axes
    ]
    return scope_pb2.ScopeSite(
        name=site.name,
        layers=site.layers,
        axes=axes,
        dtype=site.dtype,
        passes=[each.value for each in site.passes],
    )


def site_from_proto(message: scope_pb2.ScopeSite) -> Site:
    """Checked. Raises DataError."""
    try:
        axes = tuple(
            Axis(axis.name, axis.size, tuple(Split(Rule(split.rule), split.part, split.parts) for split in axis.splits))
            for axis in message.axes
        )
        passes = tuple(Pass(each) for each in message.passes)
    except ValueError as error:
        raise DataError(f"site {message.name[:40]!r}: {str(error)[:100]}; this gateway knows no rule for it") from error
    return Site(message.name, axes, tuple(message.layers), message.dtype, passes).checked()


def sites_from_proto(messages: Iterable[scope_pb2.ScopeSite]) -> list[Site]:
    """Raises DataError."""
    sites = [site_from_proto(message) for message in messages]
    if len(sites) > MAX_SITES:
        raise DataError(f"{len(sites)} sites; at most {MAX_SITES}")
    return sites
