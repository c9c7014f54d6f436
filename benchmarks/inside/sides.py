"""One class without the series and with it, in one process, so that both can take turns there.

`again` is the first one loaded a second time: how far it is from `without` is what a ratio is
good for.
"""

import importlib
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

SIDES = ("without", "again", "with")


class _Folder(MetaPathFinder):
    """Finds the modules whose text lies in a folder; the others are those of the environment."""

    def __init__(self, root: Path) -> None:
        self.modules = {
            path.relative_to(root).with_suffix("").as_posix().replace("/", "."): path
            for path in root.rglob("*.py")
        }

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return spec_from_file_location(name, self.modules[name]) if name in self.modules else None


def load(texts: Path, module: str, name: str) -> dict[str, type]:
    """The class `name` of `module` for each side; one class where the series leaves it alone.

    texts: a folder with `again/vllm/…` and `with/vllm/…`: the files that the series changes.
    """
    published = {"without": getattr(importlib.import_module(module), name)}
    return published | {side: _other(texts / side, module, name) for side in SIDES[1:]}


def _other(root: Path, module: str, name: str) -> type:
    finder = _Folder(root)
    hidden = {each: sys.modules.pop(each) for each in finder.modules if each in sys.modules}
    sys.meta_path.insert(0, finder)
    try:
        loaded: type = getattr(importlib.import_module(module), name)
        return loaded
    finally:
        sys.meta_path.remove(finder)
        sys.modules.update(hidden)


def twin(of: type, original: Any) -> Any:
    """An instance of the class `of` that shares all that `original` has."""
    made = object.__new__(of)
    made.__dict__.update(original.__dict__)
    return made
