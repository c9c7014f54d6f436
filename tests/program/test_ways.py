"""However the plan is delivered, each touched file has the same bytes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from mrv2_fixes import known, plan, series
from mrv2_fixes.targets import folder
from mrv2_fixes.targets.overlaid import Overlaid

from . import wheels
from .conftest import AFFECTED, Mrv2, Source, clone_of, git

pytestmark = pytest.mark.releases

HOOK = """
import hashlib, json, sys
from mrv2_fixes.plugin import load, start
load()
finder = sys.meta_path[0]
hashes = {}
for name, source in finder.sources.items():
    folder = f"{sys.path[1]}/{source.path.rpartition('/')[0]}"
    loader = finder.find_spec(name, [folder]).loader
    # What is compiled is the planned text, and nothing that was compiled before.
    assert loader.get_code(name) == compile(loader.planned(), name, "exec", dont_inherit=True)
    hashes[source.path] = hashlib.sha256(loader.planned()).hexdigest()
print(json.dumps(hashes))
"""

Hashes = dict[str, str]


class Ways:
    """Each method delivers a group of patches to a copy of `root`, and hashes `paths` there."""

    def __init__(self, root: Path, group: str, paths: list[str], mrv2: Mrv2, into: Path) -> None:
        self.root, self.group, self.paths, self.into = root, group, paths, into
        self.release = root.name
        self._mrv2 = mrv2

    def mrv2(self, command: str, *rest: str | Path) -> subprocess.CompletedProcess[str]:
        return self._mrv2(command, "--series", self.group, *rest)

    def apply(self) -> Hashes:
        site = shutil.copytree(self.root, self.into / "site")
        assert self.mrv2("apply", site).returncode == 0
        return self._below(site)

    def wheel(self) -> Hashes:
        official = self.into / wheels.name_of(self.release)
        wheels.pack(wheels.files_of(self.root, self.release), official)
        assert self.mrv2("build", official, "--output", self.into).returncode == 0
        (patched,) = (self.into / self.release).glob("*.whl")
        with zipfile.ZipFile(patched) as archive:
            return {path: known.digest(archive.read(path)) for path in self.paths}

    def branch(self) -> Hashes:
        clone = clone_of(self.root, self.into)
        assert self.mrv2("branch", clone, "--name", "fixes").returncode == 0
        git(clone, "checkout", "-q", "fixes")
        return self._below(clone)

    def patch_files(self) -> Hashes:
        clone = clone_of(self.root, self.into)
        assert self.mrv2("build", self.root, "--output", self.into / "out").returncode == 0
        patches = sorted((self.into / "out").glob("*/*.patch"))
        git(clone, "am", "-q", *patches)
        return self._below(clone)

    def diff(self) -> Hashes:
        site = shutil.copytree(self.root, self.into / "site")
        done = self.mrv2("diff", site)
        subprocess.run(["patch", "-s", "-p1"], cwd=site, input=done.stdout, text=True, check=True)
        return self._below(site)

    def hook(self) -> Hashes:
        script = self.into / "hook.py"
        script.write_text(HOOK)
        environ = {"PYTHONPATH": str(self.root), "MRV2_FIXES": self.group}
        done = subprocess.run(
            [sys.executable, script], env=environ, check=True, stdout=subprocess.PIPE, text=True
        )
        loaded: Hashes = json.loads(done.stdout)
        return {path: loaded[path] for path in self.paths}

    def _below(self, root: Path) -> Hashes:
        return {path: known.digest((root / path).read_bytes()) for path in self.paths}


STABLE = [
    release
    for release in known.releases()
    if any(patch.affects(release) for patch in series.load().stable)
]
RUNS = [*(("core", release) for release in AFFECTED), *(("all", release) for release in STABLE)]


@pytest.mark.parametrize("way", ["apply", "wheel", "branch", "patch_files", "diff", "hook"])
@pytest.mark.parametrize(("group", "release"), RUNS)
def test_every_way_gives_the_same(
    source: Source, mrv2: Mrv2, tmp_path: Path, group: str, release: str, way: str
) -> None:
    root = source(release)
    patches = series.load().select(group=group)
    files = folder.read(root).files
    made = plan.make(patches, files, version=release)
    assert made.after
    there = Overlaid(files, made.after)
    paths = sorted({path for patch in patches for path in patch.paths if path in there})
    into = tmp_path / "into"
    into.mkdir()
    delivered = getattr(Ways(root, group, paths, mrv2, into), way)()
    assert delivered == {path: known.digest(there[path]) for path in paths}
