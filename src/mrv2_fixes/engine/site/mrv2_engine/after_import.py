"""Call a function once a module has been imported, without importing it."""

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Change = Callable[[Any], None]

_waiting: dict[str, list[Change]] = {}


class _Finder:
    """Finds nothing itself: takes what the other finders give for a module that is waited for."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in _waiting:
            return None
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(name, path, target)) is not None:
                _call_when_executed(spec)
                return spec
        return None


def _call_when_executed(spec: ModuleSpec) -> None:
    loader: Any = spec.loader
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        for change in _waiting.pop(module.__name__, ()):
            change(module)

    loader.exec_module = exec_module


def after_import(name: str, change: Change) -> None:
    """Call `change` with the module `name`: now if it is there, else right after it is executed."""
    if name in sys.modules:
        change(sys.modules[name])
        return
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    _waiting.setdefault(name, []).append(change)
