"""The series: its patches in order, each with a header and an edit.

`patches/series.toml` has the order; `patches/<slug>/patch.toml` is a header and
`patches/<slug>/edit.py` the change. All else that is said about a patch is made from its header.
"""

from __future__ import annotations

import datetime
import importlib.util
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from mrv2_fixes.errors import SeriesError, WrongCall

if TYPE_CHECKING:
    from mrv2_fixes.edit import Vllm

Edit = Callable[["Vllm"], None]
GROUPS = ("core", "all")


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a reproducer fails without the patch.

    file: where the exception is raised, as the end of a path.
    message: part of the exception's message or of the line that raises it.
    """

    file: str
    message: str


class Reproducer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """A test that fails without the patch and passes with it.

    test: pytest node id below the repository's root.
    releases: version specifier of the releases that it is run on.
    lift: the refusal at configuration that has to be lifted for the code to be reached, or empty.
    """

    test: str
    failure: Failure
    releases: str = ""
    lift: str = ""


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """`patch.toml`.

    title: the commit's subject, in vLLM's bracketed style.
    description: symptom first, with the message that a user would search for.
    origin: the pull request that made the change upstream, or where the fault is described.
    applied_upstream: first release that has it; empty while none has.
    affects: version specifier of the releases that need it and that it is proven on.
    requires: slugs of patches that must be in for this one to be of use.
    touches: the files of vLLM that it changes.
    adds: the files that it adds to vLLM's repository, at the path that they get there: tests, and
    modules below `vllm/`, which a vLLM that is installed gets too.
    date: author date of the commit, unless git's environment says otherwise.
    removal: when the patch can go.
    differs_from_upstream: why it does, or empty.
    """

    title: str
    description: str
    origin: str
    affects: str
    touches: tuple[str, ...]
    adds: tuple[str, ...]
    date: datetime.datetime
    removal: str
    reproducers: tuple[Reproducer, ...]
    applied_upstream: str = ""
    requires: tuple[str, ...] = ()
    differs_from_upstream: str = ""


class Patch(msgspec.Struct, frozen=True):
    """One fix: slug, header, and the folder that holds them."""

    slug: str
    header: Header
    folder: Path

    def affects(self, release: str) -> bool:
        """Whether the header names `release` among those that need the patch."""
        return Version(release) in SpecifierSet(self.header.affects)

    @property
    def paths(self) -> tuple[str, ...]:
        """The files of an installed vLLM that it changes, and those that it adds."""
        return (*self.header.touches, *filter(_is_module, self.header.adds))

    def added(self) -> dict[str, bytes]:
        """Path to content of the files that it adds to vLLM's repository."""
        return {path: self._content(path) for path in self.header.adds}

    def modules(self) -> dict[str, bytes]:
        """The same of those that an installed vLLM gets too."""
        return {path: self._content(path) for path in filter(_is_module, self.header.adds)}

    def _content(self, path: str) -> bytes:
        # The series holds them at the path that they get.
        file = self.folder.parent.parent / path
        try:
            return file.read_bytes()
        except OSError as error:
            raise SeriesError(f"{file}: {error.strerror}, and {self.slug} adds it") from error

    @property
    def edit(self) -> Edit:
        """The change, loaded from `edit.py`."""
        return _load(self.folder / "edit.py", self.slug)

    def reproducers(self, release: str) -> tuple[Reproducer, ...]:
        """Those to run on `release`."""
        return tuple(
            reproducer
            for reproducer in self.header.reproducers
            if Version(release) in SpecifierSet(reproducer.releases)
        )


class Series(msgspec.Struct, frozen=True):
    """The patches in order, by group; `root` holds `patches/`, `tests/v1/` and `vllm/`.

    revision: the number that the version of a patched wheel ends with.
    """

    root: Path
    revision: int
    core: tuple[Patch, ...]
    stable: tuple[Patch, ...]

    @property
    def patches(self) -> tuple[Patch, ...]:
        """All of them, in order."""
        return self.core + self.stable

    def patch(self, slug: str) -> Patch:
        """The patch of that name. Raises WrongCall when there is none."""
        for patch in self.patches:
            if patch.slug == slug:
                return patch
        known = ", ".join(patch.slug for patch in self.patches)
        raise WrongCall(f"no patch {slug!r}: the series has {known}")

    def select(self, slugs: Sequence[str] = (), group: str = "core") -> tuple[Patch, ...]:
        """The patches named, with those that they require.

        group: what is taken when none is named, "core" or "all".
        Raises WrongCall for a slug that does not exist.
        """
        if not slugs:
            return self.core if group == "core" else self.patches
        wanted: set[str] = set()
        ahead = list(slugs)
        while ahead:
            patch = self.patch(ahead.pop())
            if patch.slug not in wanted:
                wanted.add(patch.slug)
                ahead.extend(patch.header.requires)
        return tuple(patch for patch in self.patches if patch.slug in wanted)


def root() -> Path:
    """The folder with the series: in the installed package, else the repository."""
    packaged = Path(__file__).parent / "series"
    return packaged if packaged.is_dir() else Path(__file__).parents[2]


@cache
def load(folder: Path | None = None) -> Series:
    """Read and check the series below `folder` (default: `root()`).

    Raises SeriesError for a header that is wrong, a folder that the order does not name, a patch
    that stands before one that it requires, or a module that two of them add.
    """
    folder = folder or root()
    patches = folder / "patches"

    class Order(msgspec.Struct, forbid_unknown_fields=True):
        revision: int
        core: tuple[str, ...]
        stable: tuple[str, ...]

    order = _decode(patches / "series.toml", Order)
    series = Series(
        folder,
        order.revision,
        tuple(_patch(patches / slug) for slug in order.core),
        tuple(_patch(patches / slug) for slug in order.stable),
    )
    _check_order(patches, series.patches)
    return series


def _check_order(folder: Path, patches: Iterable[Patch]) -> None:
    seen: list[str] = []
    adding: dict[str, str] = {}
    for patch in patches:
        if patch.slug in seen:
            raise SeriesError(f"{folder / 'series.toml'}: {patch.slug} is there twice")
        for required in patch.header.requires:
            if required not in seen:
                order = folder / "series.toml"
                raise SeriesError(f"{order}: {patch.slug} requires {required}; put it behind that")
        for path in filter(_is_module, patch.header.adds):
            if adding.setdefault(path, patch.slug) != patch.slug:
                raise SeriesError(f"{path}: both {adding[path]} and {patch.slug} add it")
        seen.append(patch.slug)
    present = sorted(path.parent.name for path in folder.glob("*/patch.toml"))
    unnamed = [slug for slug in present if slug not in seen]
    if unnamed:
        raise SeriesError(f"{folder / 'series.toml'}: does not name {', '.join(unnamed)}")


def _patch(folder: Path) -> Patch:
    header = _decode(folder / "patch.toml", Header)
    try:
        for specifier in (header.affects, *(one.releases for one in header.reproducers)):
            SpecifierSet(specifier)
    except InvalidSpecifier as error:
        raise SeriesError(f"{folder / 'patch.toml'}: {error}") from error
    # Of what is installed, every kind of target reads Python files alone.
    outside = [p for p in header.adds if not (p.startswith("tests/") or _is_module(p))]
    if outside:
        ways = "want paths below tests/, and of .py files below vllm/"
        raise SeriesError(f"{folder / 'patch.toml'}: adds {', '.join(outside)}: {ways}")
    return Patch(folder.name, header, folder)


def _is_module(path: str) -> bool:
    return path.startswith("vllm/") and path.endswith(".py") and ".." not in path.split("/")


T = TypeVar("T")


def _decode(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.toml.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise SeriesError(f"{path}: {error.strerror}") from error
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeError) as error:
        raise SeriesError(f"{path}: {error}") from error


@cache
def _load(path: Path, slug: str) -> Edit:
    spec = importlib.util.spec_from_file_location(f"mrv2_fixes_edit_{slug.replace('-', '_')}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except OSError as error:
        raise SeriesError(f"{path}: {error.strerror}") from error
    return cast(Edit, module.edit)
