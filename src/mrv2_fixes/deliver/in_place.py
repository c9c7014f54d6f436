"""`mrv2 apply` and `mrv2 revert`: a vLLM changed where it stands, all of it or nothing."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mrv2_fixes import series, targets
from mrv2_fixes.deliver import transaction
from mrv2_fixes.deliver.site import Site
from mrv2_fixes.deliver.transaction import Change
from mrv2_fixes.errors import Drifted, Mrv2Error, TargetUnusable, WrongCall
from mrv2_fixes.plan import Plan, State
from mrv2_fixes.series import Patch
from mrv2_fixes.targets import Target
from mrv2_fixes.targets.folder import distributions

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Done:
    """What a command did, read back from disk.

    plan: of the vLLM as it is now.
    changed: paths of the files that were written, taken away or put back, but for .pyc files.
    """

    target: Target
    plan: Plan
    changed: tuple[str, ...]


def apply(name: str | None, patches: Sequence[Patch], progress: Progress) -> Done:
    """Put `patches` into the vLLM that `name` means, beside those that are in already.

    Raises WrongCall when it is nothing to be changed in place, Drifted when a patch does not fit or
    a file was changed since it was written, TargetUnusable when it cannot be written. Then nothing
    is changed.
    """
    with _open(name, "apply", progress) as site:
        wanted = _patches(site, {*site.slugs, *(patch.slug for patch in patches)})
        made = _plan(site, wanted)
        for slug, note in made.notes().items():
            progress(f"{slug}: {note}")
        changed = _bring(site, "apply", made)
        # What was planned for has been read back, and stands there.
        steps = (
            msgspec.structs.replace(step, state=State.APPLIED)
            if step.state is State.NEEDED
            else step
            for step in made.steps
            if step.patch in patches
        )
        return Done(site.target, msgspec.structs.replace(made, steps=tuple(steps)), changed)


def revert(name: str | None, slugs: Collection[str], force: bool, progress: Progress) -> Done:
    """Take out what `apply` put in: the patches `slugs`, or all when none is named.

    force: also where a file was changed since. Where another vLLM was installed over the one that
    had the patches, it is the record alone that goes.
    Raises as `apply` does, and WrongCall when a patch that stays requires one that goes.
    """
    with _open(name, "revert", progress) as site:
        for slug in set(slugs).difference(site.slugs):
            series.load().patch(slug)
        every = series.load().patches
        shown = [patch for patch in every if patch.slug in site.slugs] or series.load().core
        if site.upgraded:
            _check_forced(site, force)
            changed = _bring(site, "revert", None)
            return Done(site.target, site.now(shown), changed)
        if not site.slugs:
            _check_not_in(site)
            return Done(site.target, site.now(shown), ())
        staying = _patches(site, [slug for slug in site.slugs if slugs and slug not in slugs])
        _check_requirements(staying, {*site.slugs}.difference(patch.slug for patch in staying))
        made = _plan(site, staying) if staying else None
        changed = _bring(site, "revert", made, force)
        return Done(site.target, site.now(shown), changed)


@contextlib.contextmanager
def _open(name: str | None, command: str, progress: Progress) -> Iterator[Site]:
    """The vLLM that `name` means, for this process alone, with nothing left half done."""
    root = targets.root(name, command)

    def waiting() -> None:
        progress(f"{root}: waiting for another mrv2 that is at work there")

    with transaction.locked(root / "vllm", waiting):
        settled = transaction.recover(root)
        if settled:
            progress(f"{root}: {settled}")
        yield Site(root, targets.open_target(name, progress))


def _patches(site: Site, slugs: Collection[str]) -> list[Patch]:
    """The patches of these names, in order. Raises WrongCall for one that the series lacks."""
    patches = [patch for patch in series.load().patches if patch.slug in slugs]
    missing = sorted({*slugs}.difference(patch.slug for patch in patches))
    if missing:
        raise WrongCall(f"{', '.join(missing)}: in, but not in this series: {_revert(site)} first")
    return patches


def _revert(site: Site, *options: str) -> str:
    """What to type to take out what is in."""
    return shlex.join(["mrv2", "revert", *options, str(site.root)])


def _plan(site: Site, patches: Sequence[Patch]) -> Plan:
    made = site.plan(patches)
    made.check(site.target.where)
    return made


def _check_tampered(site: Site) -> None:
    changed = site.tampered()
    if changed:
        raise Drifted(
            f"{site.target.where}: tampered: changed since mrv2 wrote it, and left alone: "
            f"{', '.join(changed)}; {_revert(site, '--force')} puts back what was there at first"
        )


def _check_forced(site: Site, force: bool) -> None:
    if not force and site.record:
        raise Drifted(
            f"{site.target.where}: {site.target.version or 'another vLLM'}, installed over "
            f"{site.record.vllm or 'one'} that had the patches: there is nothing to take back; "
            f"{_revert(site, '--force')} takes the record of them away, and touches nothing else"
        )


def _check_not_in(site: Site) -> None:
    where = site.target.where
    if site.base:
        raise TargetUnusable(
            f"{where}: installed from a patched wheel: put the official one back: "
            f"{_reinstall(site)}"
        )
    if any(step.state is State.APPLIED for step in site.now(series.load().patches).steps):
        raise TargetUnusable(
            f"{where}: has patches of this series, which mrv2 apply did not put in: what was there "
            f"before is not known: put the official one back: {_reinstall(site)}"
        )


def _reinstall(site: Site) -> str:
    """What to type for the official vLLM: pip takes the version that is there for the same."""
    found = distributions(site.root)
    named = [f"{name}=={version.partition('+')[0]}" for name, version in found]
    return f"pip install --force-reinstall --no-deps {named[0] if len(named) == 1 else 'vllm'}"


def _check_requirements(staying: Iterable[Patch], going: Collection[str]) -> None:
    for patch in staying:
        required = sorted({*patch.header.requires}.intersection(going))
        if required:
            raise WrongCall(f"{patch.slug} requires {', '.join(required)}: take it out as well")


def _check_writable(root: Path, paths: Iterable[str]) -> None:
    for folder in sorted({root / "vllm", *((root / path).parent for path in paths)}):
        if folder.exists() and not os.access(folder, os.W_OK | os.X_OK):
            raise TargetUnusable(
                f"{folder}: may not be written: run this as the user that installed it, or where "
                "it is mounted for writing; nothing is changed"
            )


def _bring(site: Site, command: str, made: Plan | None, force: bool = False) -> tuple[str, ...]:
    """Bring the vLLM to what `made` says, None for what was there at first, and read it back.

    force: also where a file was changed since it was written.
    Returns the paths of what was changed, but for .pyc files.
    """
    changes = {}
    for path, after in site.goal(made).items():
        before = transaction.read(site.root / path)
        if before != after:
            changes[path] = Change(before, after, derived=path.endswith(".pyc"))
    # What comes later than this is noticed by the commit.
    if not force:
        _check_tampered(site)
    if changes:
        _check_writable(site.root, changes)
        transaction.commit(site.root, command, changes)
    for path, change in changes.items():
        if not transaction.same(transaction.read(site.root / path), change.after):
            raise Mrv2Error(f"{site.root / path}: read back, it is not what was written")
    return tuple(sorted(path for path, change in changes.items() if not change.derived))
