"""The code speaks the field's language: names that an engineer would stumble over are not defined any more."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("libs", "services", "native", "bench", "scripts", "tests", "examples")
RETIRED = frozenset(
    [
        "Seen",
        "Shelf",
        "Watched",
        "Follower",
        "Keep",
        "Tell",
        "last_words",
        "wishes",
        "Meeting",
        "Met",
        "Offer",
        "told",
        "rouse",
        "bid_farewell",
        "look",
        "not_new",
        "Story",
        "hear",
        "NowhereView",
        "spoken",
        "_said",
        "greet",
        "introduction",
        "same",
        "ROLL_CALL",
        "Islands",
        "Heard",
        "Told",
        "_pardon",
        "Platform",
        "kGlanceNs",
        "taken",
        "Taken",
    ]
)
"""Names of definitions; the field's terms stand in their places (docs/vocabulary.md)."""
RETIRED_IN = {
    "services/operator": frozenset(["Suspicion"]),
    "services/operator/megatronapp/operator/moves.py": frozenset(["Create"]),
}
"""Names that are clear elsewhere: a rule of the detector has its Suspicion, the Kubernetes client its Create."""
RETIRED_MODULES = frozenset(
    [
        "seen",
        "shelf",
        "watched",
        "follower",
        "refused",
        "story",
        "meeting",
        "offer",
        "reception",
        "keeping",
        "aside",
        "last_words",
        "wishes",
    ]
)
CPP_DEFINITION = re.compile(r"\b(?:class|struct|enum class|void|bool|auto|int|constexpr [\w:]+)\s+(?:\w+::)?(\w+)")


def python_files() -> Iterator[Path]:
    for folder in SOURCES:
        for path in (ROOT / folder).rglob("*.py"):
            if "node_modules" not in path.parts and "build" not in path.parts:
                yield path


def defined(tree: ast.AST) -> Iterator[str]:
    """Names of classes and functions, and of what a module, class or instance holds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        if isinstance(node, ast.ClassDef | ast.Module):
            yield from (target.id for target in _assigned(node.body) if isinstance(target, ast.Name))
        if isinstance(node, ast.Assign | ast.AnnAssign):
            yield from (target.attr for target in _assigned([node]) if isinstance(target, ast.Attribute))


def _assigned(body: list[ast.stmt]) -> Iterator[ast.expr]:
    for statement in body:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                yield from target.elts if isinstance(target, ast.Tuple) else [target]
        elif isinstance(statement, ast.AnnAssign):
            yield statement.target


def retired(path: Path) -> frozenset[str]:
    return RETIRED.union(*(names for place, names in RETIRED_IN.items() if path.is_relative_to(ROOT / place)))


def test_no_definition_bears_a_retired_name() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in python_files()
        for name in retired(path).intersection(defined(ast.parse(path.read_text())))
    }

    assert not found


def test_no_module_bears_a_retired_name() -> None:
    assert not [path for path in python_files() if path.stem in RETIRED_MODULES]


def test_no_definition_of_the_native_parts_bears_a_retired_name() -> None:
    files = [path for kind in ("*.cpp", "*.h") for path in (ROOT / "native").rglob(kind)]

    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in files
        for name in RETIRED.intersection(CPP_DEFINITION.findall(path.read_text()))
    }

    assert files
    assert not found


@pytest.mark.parametrize(
    "source", ["class Seen: ...", "def told(): ...", "ROLL_CALL = 1", "self._said = 0", "self.a, self.told = 1, 2"]
)
def test_the_check_sees_every_way_to_define_a_name(source: str) -> None:
    assert RETIRED.intersection(defined(ast.parse(source)))
