from megatronapp.gateway.models import Recipe
from megatronapp.gateway.recipes import difference


def test_what_differs_is_named_and_what_is_equal_is_counted() -> None:
    first = Recipe(settings={"lr": "3e-4", "seed": "1", "bf16": "true"}, versions={"torch": "2.10"})
    second = Recipe(settings={"lr": "1e-4", "seed": "1"}, versions={"torch": "2.11"})

    found = difference(["a", "b"], [first, second])

    assert [(each.name, each.values) for each in found.settings] == [("bf16", ("true", None)), ("lr", ("3e-4", "1e-4"))]
    assert [(each.name, each.values) for each in found.versions] == [("torch", ("2.10", "2.11"))]
    assert found.equal == 1


def test_a_run_does_not_differ_from_itself() -> None:
    recipe = Recipe(settings={"lr": "3e-4"}, versions={})

    assert difference(["a", "b", "c"], [recipe] * 3).settings == []
