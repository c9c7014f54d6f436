"""The import hook: gives Python the planned text of a module in the place of its file's.

Every module that a selected patch touches is loaded through it, also those that need no change, and
compiled files have no part in it: so what runs is what was planned for.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, ModuleType

from mrv2_fixes import known
from mrv2_fixes.errors import Mrv2Error

PLACE = "<mrv2-fixes>"
"""In the place of the folder that holds `vllm/`, in the file names of what the hook serves: the
lines in a traceback are those of the planned text, and no file has them."""


class NotServed(Mrv2Error, ImportError):
    """A module could not be loaded as planned, and is not loaded at all."""


@dataclass(frozen=True)
class Source:
    """What a module is made of.

    path: of its file, below the folder that holds `vllm/`.
    before: SHA-256 that the file must have; None where there must be none.
    text: the planned text; None where that is the file's.
    """

    path: str
    before: str | None
    text: bytes | None


class Finder(importlib.abc.MetaPathFinder):
    """Takes what the finders behind it find for the modules `sources`, with another loader.

    Of a module that the plan adds they find nothing, and it is loaded as if its file were there.
    refuse: is called with why a module cannot be loaded as planned; where it returns, the module is
    loaded as the others would have it.
    say: is called when a module is about to be loaded.
    """

    def __init__(
        self,
        sources: Mapping[str, Source],
        refuse: Callable[[str], None],
        say: Callable[[], None],
    ) -> None:
        self.sources = sources
        self.refuse = refuse
        self.say = say

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of one of the modules; None for every other module."""
        source = self.sources.get(fullname)
        if source is None:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find_spec = getattr(finder, "find_spec", None)
            spec = find_spec(fullname, path, target) if find_spec else None
            if spec is not None:
                return self._served(spec, source, finder)
        if source.before is None and path:
            place = os.path.join(path[0], source.path.rpartition("/")[2])
            loader = Loader(fullname, place, source, self.say)
            return importlib.util.spec_from_loader(fullname, loader)
        return None

    def _served(
        self, spec: importlib.machinery.ModuleSpec, source: Source, finder: object
    ) -> importlib.machinery.ModuleSpec:
        """The spec with the loader of the planned text, at once or within that of a tracer."""
        loader = spec.loader
        inner = getattr(loader, "loader", None)
        if type(loader) is importlib.machinery.SourceFileLoader:
            spec.loader = Loader(spec.name, loader.path, source, self.say)
        elif type(inner) is importlib.machinery.SourceFileLoader:
            loader.loader = Loader(spec.name, inner.path, source, self.say)  # type: ignore[union-attr]
        elif source.text is not None:
            self.refuse(f"{spec.name}: {finder} loads it in a way of its own: remove that hook")
        return spec


class Loader(importlib.machinery.SourceFileLoader):
    """Loads one module from its planned text; from its file's where nothing is planned.

    planned_text: None where nothing is.
    """

    def __init__(self, name: str, path: str, source: Source, say: Callable[[], None]) -> None:
        super().__init__(name, path)
        self._source = source
        self._say = say
        self.planned_text = source.text

    def get_code(self, fullname: str) -> CodeType:
        """The code of the planned text, compiled anew.

        Raises NotServed when the file has changed since the plan was made.
        """
        self._say()
        served = self.planned_text is not None
        place = f"{PLACE}/{self._source.path}" if served else self.path
        code: CodeType = compile(self.planned(), place, "exec", dont_inherit=True)
        return code

    def get_source(self, fullname: str) -> str | None:
        """The planned text, for tracebacks and, of a function, `inspect`."""
        text = self.planned_text
        return super().get_source(fullname) if text is None else importlib.util.decode_source(text)

    def planned(self) -> bytes:
        """The text that is compiled."""
        on_disk = self._on_disk()
        there = None if on_disk is None else known.digest(on_disk)
        text = on_disk if self.planned_text is None else self.planned_text
        if there != self._source.before or text is None:
            raise NotServed(f"{self.path}: changed since this process started: start it again")
        return text

    def _on_disk(self) -> bytes | None:
        try:
            return self.get_data(self.path)
        except FileNotFoundError:
            return None


def install(finder: Finder) -> None:
    """Put `finder` in front of the others."""
    sys.meta_path.insert(0, finder)
    if sys.version_info < (3, 13) and sys.excepthook is sys.__excepthook__:
        # Before 3.13 the hook is written in C and looks for lines in files alone.
        sys.excepthook = traceback.print_exception
