"""The import hook: gives Python the planned text of a module in the place of its file's.

Every module that a selected patch touches is loaded through it, also those that need no change: so
it is known, by its hash, what each of them was made of. Compiled files have no part in it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
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
    before: SHA-256 that the file must have. text: the planned text; None where that is the file's.
    """

    path: str
    before: str
    text: bytes | None


class Finder(importlib.abc.MetaPathFinder):
    """Takes what the finders behind it find for the modules `sources`, with another loader.

    say: is called when a module is about to be loaded.
    loaded: SHA-256 of the text of each module that was loaded through it, by module name.
    """

    def __init__(self, sources: Mapping[str, Source], say: Callable[[], None]) -> None:
        self.sources = sources
        self.say = say
        self.loaded: dict[str, str] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of one of the modules; None for every other module.

        Raises NotServed when there is something else to load than a Python file.
        """
        source = self.sources.get(fullname)
        if source is None:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is None:
                continue
            if type(spec.loader) is not importlib.machinery.SourceFileLoader:
                raise NotServed(f"{fullname}: {finder} gives a loader of its own for it: remove it")
            spec.loader = _Loader(fullname, spec.loader.path, source, self)
            return spec
        return None


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, source: Source, finder: Finder) -> None:
        super().__init__(name, path)
        self._source = source
        self._finder = finder

    def get_code(self, fullname: str) -> CodeType:
        """The code of the planned text, compiled anew."""
        self._finder.say()
        text = self._text()
        served = self._source.text is not None
        place = f"{PLACE}/{self._source.path}" if served else self.path
        code: CodeType = compile(text, place, "exec", dont_inherit=True)
        self._finder.loaded[fullname] = known.digest(text)
        return code

    def get_source(self, fullname: str) -> str | None:
        """The planned text, for tracebacks and `inspect`."""
        text = self._source.text
        return super().get_source(fullname) if text is None else importlib.util.decode_source(text)

    def _text(self) -> bytes:
        on_disk = self.get_data(self.path)
        if known.digest(on_disk) != self._source.before:
            raise NotServed(f"{self.path}: changed since this process started: start it again")
        return on_disk if self._source.text is None else self._source.text


def install(sources: Mapping[str, Source], say: Callable[[], None]) -> Finder:
    """Put a finder for `sources` in front of the others; see there."""
    finder = Finder(sources, say)
    sys.meta_path.insert(0, finder)
    if sys.version_info < (3, 13) and sys.excepthook is sys.__excepthook__:
        # Before 3.13 the hook is written in C and looks for lines in files alone.
        sys.excepthook = traceback.print_exception
    return finder
