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
    """Each method delivers the series to a copy of `root`, and gives the hashes of `paths`."""

    def __init__(self, root: Path, paths: list[str], mrv2: Mrv2, into: Path) -> None:
        self.root, self.paths, self.mrv2, self.into = root, paths, mrv2, into
        self.release = root.name

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
        environ = {"PYTHONPATH": str(self.root)}
        done = subprocess.run(
            [sys.executable, script], env=environ, check=True, stdout=subprocess.PIPE, text=True
        )
        loaded: Hashes = json.loads(done.stdout)
        return {path: loaded[path] for path in self.paths}

    def _below(self, root: Path) -> Hashes:
        return {path: known.digest((root / path).read_bytes()) for path in self.paths}


@pytest.mark.parametrize("way", ["apply", "wheel", "branch", "patch_files", "diff", "hook"])
@pytest.mark.parametrize("release", AFFECTED)
def test_every_way_gives_the_same(
    source: Source, mrv2: Mrv2, tmp_path: Path, release: str, way: str
) -> None:
    root = source(release)
    files = folder.read(root).files
    after = plan.make(series.load().core, files, version=release).after
    touched = {path for patch in series.load().core for path in patch.header.touches}
    paths = sorted(path for path in touched if path in files)
    into = tmp_path / "into"
    into.mkdir()
    delivered = getattr(Ways(root, paths, mrv2, into), way)()
    assert delivered == {path: known.digest(after.get(path, files[path])) for path in paths}
