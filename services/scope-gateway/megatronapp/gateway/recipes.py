"""What recipes differ in. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from megatronapp.gateway.models import Recipe
from megatronapp.gateway.run_models import Difference, RecipeDifference


def difference(runs: Sequence[str], recipes: Sequence[Recipe]) -> RecipeDifference:
    """Of the runs' recipes, in their order."""
    settings, equal_settings = _differing([recipe.settings for recipe in recipes])
    versions, equal_versions = _differing([recipe.versions for recipe in recipes])
    return RecipeDifference(
        runs=list(runs), settings=settings, versions=versions, equal=equal_settings + equal_versions
    )


def _differing(values: Sequence[Mapping[str, str]]) -> tuple[list[Difference], int]:
    """Names that differ, and how many do not."""
    names = sorted(set().union(*values))
    rows = [Difference(name=name, values=tuple(each.get(name) for each in values)) for name in names]
    differing = [row for row in rows if len(set(row.values)) > 1]
    return differing, len(rows) - len(differing)
