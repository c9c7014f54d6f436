"""A vLLM that is changed where it stands: what was there at first, and what is to be there.

What is to be there is made of the files as they were at first, whatever is in: so a first patch, a
further one, one less and none at all are the same thing.
"""

from __future__ import annotations

import glob
import time
from collections.abc import Mapping, Sequence, Set
from pathlib import Path, PurePosixPath

import msgspec

from mrv2_fixes import known, plan, program_version, record
from mrv2_fixes.deliver import installed_record, transaction
from mrv2_fixes.errors import TargetUnusable
from mrv2_fixes.plan import Plan
from mrv2_fixes.record import File, Record, RecordRows
from mrv2_fixes.series import Patch
from mrv2_fixes.targets import Target
from mrv2_fixes.targets.overlaid import Overlaid
from mrv2_fixes.targets.target import MARK

Goal = dict[str, File | None]
"""Path to what is to stand there, None for nothing."""
SECOND = 10**9  # nanoseconds


class Site:
    """The vLLM below `root`.

    record: what stands there as our record. upgraded: it is of another vLLM.
    base: the record that the vLLM came with, as a patched wheel does.
    slugs: of the patches that came in by `apply`.
    first: path to the file that was there before the first `apply`, None where there was none.
    listings: path to each RECORD that was changed.
    """

    def __init__(self, root: Path, target: Target) -> None:
        self.root = root
        self.target = target
        self.record = target.any_record()
        self.upgraded = self.record is not None and target.upgraded_since(self.record)
        self.base: Record | None = None
        self.slugs: list[str] = []
        self.first: Goal = {}
        self.listings: dict[str, RecordRows] = {}
        if self.record is None or self.upgraded:
            return
        if not self.record.originals:
            self.base = self.record
            return
        self.first = self.record.originals
        self.listings = self.record.listings
        came_with = self.first.get(record.PATH)
        if came_with is not None:
            self.base = msgspec.json.decode(came_with.content, type=Record)
        there = self.base.patches if self.base else ()
        self.slugs = [slug for slug in self.record.patches if slug not in there]

    def plan(self, patches: Sequence[Patch]) -> Plan:
        """For the files as they were at first."""
        first = {path: file.content if file else None for path, file in self.first.items()}
        files = Overlaid(self.target.files, first)
        return plan.quick(patches, files, version=self.target.version, record=self.base)

    def now(self, patches: Sequence[Patch]) -> Plan:
        """For the files as they are."""
        target = self.target
        return plan.quick(patches, target.files, version=target.version, record=target.record())

    def tampered(self) -> list[str]:
        """The files that are neither what was written nor what was there at first."""
        changed = []
        for path, sha256 in self.record.files.items() if self.slugs and self.record else ():
            there, first = transaction.read(self.root / path), self.first.get(path)
            if there is None or not (known.digest(there.content) == sha256 or _alike(there, first)):
                changed.append(path)
        for path, listed in self.listings.items():
            there = transaction.read(self.root / path)
            if there is None or not installed_record.put_back(there.content, listed.rows)[1]:
                changed.append(path)
        return changed

    def goal(self, made: Plan | None) -> Goal:
        """What is to stand there for `made`, a plan for the files as they were at first.

        None is for the files as they were. Raises TargetUnusable when a file is another by now than
        the one that was planned.
        """
        after = made.after if made else {}
        first = self._first_of(made)
        goal = self._sources(first, after)
        kept = {path: file for path, file in first.items() if _source(path) in after}
        texts, listings = self._listings({*first, record.PATH}, after, kept)
        written = self._record(made, kept, listings) if made and after else self._came_with()
        goal[record.PATH] = written
        added = {path: after.get(path) for path, file in first.items() if file is None}
        own = {**added, record.PATH: written.content if written else None}
        for path, text in texts.items():
            for name, content in own.items():
                text = installed_record.with_own(text, name, content)
            as_at_first = not after and path in self.listings
            goal[path] = self._listing(path, text, listings[path].file, as_at_first)
        return goal

    def _first_of(self, made: Plan | None) -> Goal:
        """`first`, with the files that `made` changes besides."""
        first = dict(self.first)
        for path in made.after if made else ():
            if path in first:
                continue
            first[path] = there = transaction.read(self.root / path)
            if made and (there.content if there else None) != made.before.get(path):
                raise TargetUnusable(f"{self.root / path}: changed while it was read: run it again")
            first |= {name: transaction.read(self.root / name) for name in self._compiled(path)}
        return first

    def _sources(self, first: Goal, after: Mapping[str, bytes]) -> Goal:
        goal: Goal = {}
        for path in first:
            if not path.endswith(".py"):
                continue
            there = transaction.read(self.root / path)
            if path not in after:
                goal[path] = first[path]
            elif there is None or (there.content, there.link) != (after[path], None):
                goal[path] = self._patched(path, first[path], after[path])
            else:
                continue
            # What was compiled from the text that goes could be taken for the new one's.
            for name in {*self._compiled(path), *(name for name in first if _source(name) == path)}:
                if name != path:
                    goal[name] = None if path in after else first.get(name)
        return goal

    def _patched(self, path: str, first: File | None, content: bytes) -> File:
        like = first or self._mark()
        there = self.root / path
        latest = max(like.mtime_ns, there.stat().st_mtime_ns if there.exists() else 0)
        # A .pyc has its source's time, in seconds: no older one may have this one's by chance.
        mtime_ns = max(time.time_ns(), latest + SECOND)
        return File(content, like.mode, mtime_ns, like.owner)

    def _mark(self) -> File:
        """What a file that is new here has its permissions and owner from."""
        mark = transaction.read(self.root / MARK)
        assert mark is not None  # without it, it is no target
        return mark

    def _compiled(self, path: str) -> list[str]:
        """The .pyc files of a module that are there, of every Python."""
        module = PurePosixPath(path)
        folder = self.root / module.parent / "__pycache__"
        names = folder.glob(f"{glob.escape(module.stem)}.*.pyc")
        return [name.relative_to(self.root).as_posix() for name in sorted(names)]

    def _came_with(self) -> File | None:
        """The record's file as it was before the first `apply`."""
        if record.PATH in self.first:
            return self.first[record.PATH]
        return None if self.upgraded else transaction.read(self.root / record.PATH)

    def _record(self, made: Plan, kept: Goal, listings: dict[str, RecordRows]) -> File:
        base = self.base
        came_in = [step.patch.slug for step in made.needed()]
        written = {path: known.digest(content) for path, content in made.after.items()}
        content = record.encode(
            Record(
                "apply",
                program_version(),
                (*(base.patches if base else ()), *came_in),
                {**(base.files if base else {}), **written},
                self.target.version,
                {**kept, record.PATH: self._came_with()},
                listings,
            )
        )
        there = transaction.read(self.root / record.PATH)
        if there and there.content == content:
            return there
        mark = self._mark()
        return File(content, mark.mode, time.time_ns(), mark.owner)

    def _listings(
        self, paths: Set[str], after: Mapping[str, bytes], kept: Goal
    ) -> tuple[dict[str, bytes], dict[str, RecordRows]]:
        """Each RECORD that has a row for one of `paths`, with the rows of `after`."""
        texts, listings = {}, {}
        gone = {path for path in kept if path.endswith(".pyc")}
        for found in sorted(self.root.glob("*.dist-info/RECORD")):
            there = transaction.read(found)
            if there is None or not any(
                installed_record.lists(there.content, path) for path in paths
            ):
                continue
            path = found.relative_to(self.root).as_posix()
            stood = self.listings.get(path)
            text = (
                installed_record.put_back(there.content, stood.rows)[0] if stood else there.content
            )
            texts[path], rows = installed_record.replace(text, after, gone)
            file = stood.file if stood else msgspec.structs.replace(there, content=b"")
            listings[path] = RecordRows(file, tuple(rows))
        return texts, listings

    def _listing(self, path: str, text: bytes, first: File, as_at_first: bool) -> File:
        """A RECORD with another text."""
        there = transaction.read(self.root / path)
        if as_at_first:
            return msgspec.structs.replace(first, content=text)
        if there and there.content == text:
            return there
        return File(text, first.mode, time.time_ns(), first.owner)


def _source(path: str) -> str:
    """The module that a .pyc in its `__pycache__` is of; any other path itself."""
    file = PurePosixPath(path)
    if file.suffix != ".pyc":
        return path
    return (file.parent.parent / f"{file.name.partition('.')[0]}.py").as_posix()


def _alike(there: File, first: File | None) -> bool:
    return first is not None and there.content == first.content
