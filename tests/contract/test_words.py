"""The code speaks the field's language: names that an engineer would stumble over are not defined any more."""

import ast
import re
from collections.abc import Iterable, Iterator
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
PRODUCT = ("libs", "services", "native", "bench")
RETIRED_OF_THE_PRODUCT = RETIRED | {"shelf", "watched", "follower", "followers", "tell"}
RETIRED_OF_LOCALS = frozenset(["shelf", "watched", "follower", "followers", "told", "look", "tell"])
"""Product code has them neither behind an underscore nor, where no other meaning is near, as a parameter or local."""
RETIRED_OF_NATIVE_LOCALS = RETIRED_OF_LOCALS - {"watched", "tell"}
"""A stream on the device is watched, a peer is told."""
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


CPP_COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"', re.S)


def python_files(folders: Iterable[str] = SOURCES) -> Iterator[Path]:
    for folder in folders:
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


def local(tree: ast.AST) -> Iterator[str]:
    """Names of parameters, and of whatever is assigned, by a loop or a comprehension too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def retired_in_product(source: str) -> set[str]:
    tree = ast.parse(source)
    found = {name for name in defined(tree) if name.strip("_") in RETIRED_OF_THE_PRODUCT}
    return found | {name for name in local(tree) if name.strip("_") in RETIRED_OF_LOCALS}


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


def test_no_name_of_the_product_is_a_retired_one_behind_an_underscore_or_in_a_function() -> None:
    found = {str(path.relative_to(ROOT)): retired_in_product(path.read_text()) for path in python_files(PRODUCT)}

    assert found
    assert not {path: names for path, names in found.items() if names}


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


def test_no_code_of_the_native_parts_uses_a_retired_name() -> None:
    files = [path for kind in ("*.cpp", "*.h") for path in (ROOT / "native").rglob(kind)]

    words = {
        path: {word.strip("_") for word in re.findall(r"\w+", CPP_COMMENT_OR_TEXT.sub("", path.read_text()))}
        for path in files
    }

    assert not {path: found for path in files if (found := RETIRED_OF_NATIVE_LOCALS & words[path])}


@pytest.mark.parametrize(
    "source", ["class Seen: ...", "def told(): ...", "ROLL_CALL = 1", "self._said = 0", "self.a, self.told = 1, 2"]
)
def test_the_check_sees_every_way_to_define_a_name(source: str) -> None:
    assert RETIRED.intersection(defined(ast.parse(source)))


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    def _tell(self): ...",
        "self._watched = 0",
        "def f(told): ...",
        "def f():\n    for told in (): ...",
        "look, b = 1, 2",
        "[follower for follower in ()]",
    ],
)
def test_the_check_of_the_product_sees_underscores_parameters_and_locals(source: str) -> None:
    assert retired_in_product(source)
