"""What to do with a module once it is imported: by an entry of sys.meta_path, as instrumentation of other tools does.

Light: every process under `megatronapp attach` imports this at its start.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], None]


class LateImports(MetaPathFinder):
    def __init__(self, on_error: Callable[[str, Exception], None]) -> None:
        """`on_error` hears which module an action failed on; the import goes on."""
        self._actions: dict[str, Action] = {}
        self._on_error = on_error

    def when_imported(self, name: str, action: Action) -> None:
        """Once, when the module has run; now, if it has. One action for each module."""
        module = sys.modules.get(name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            self._act(module, action)
        else:
            self._actions[name] = action

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if fullname not in self._actions:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                return self._then_patched(spec)
        return None

    def _then_patched(self, spec: ModuleSpec) -> ModuleSpec:
        if spec.loader is not None and hasattr(spec.loader, "exec_module"):
            action = self._actions.pop(spec.name)
            spec.loader = _ThenAct(spec.loader, lambda module: self._act(module, action))
        return spec

    def _act(self, module: ModuleType, action: Action) -> None:
        try:
            action(module)
        except Exception as error:  # noqa: BLE001  (an unknown version is no reason to fail somebody's import)
            self._on_error(module.__name__, error)


class _ThenAct(Loader):
    """A loader that gives way to the real one when the module has run."""

    def __init__(self, loader: Any, act: Action) -> None:
        self._loader = loader
        self._act = act

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._act(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
