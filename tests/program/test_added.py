"""A module that a patch adds to vLLM: its states, in place, by the import hook, in a diff."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mrv2_fixes import known, plan, printing, record, series
from mrv2_fixes.deliver.site import Goal, Site
from mrv2_fixes.errors import TargetUnusable
from mrv2_fixes.record import Record
from mrv2_fixes.targets import folder

from . import faults
from .conftest import Mrv2, Source, git
from .faults import snapshot
from .test_apply import listed, wrong_rows

pytestmark = pytest.mark.releases

SLUG = "check-attn-metadata"
PATCH = series.load().patch(SLUG)
((MODULE, TEXT),) = PATCH.modules().items()
NAME = MODULE.removesuffix(".py").replace("/", ".")
RELEASE = "0.24.0"
MINE = TEXT + b"# mine\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A vLLM as an installer leaves it; see `faults.tree`."""
    return faults.tree(tmp_path)


def edited(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files that the edit of the patch changes, changed."""
    after = plan.make([PATCH], files, version=RELEASE).after
    return {path: text for path, text in after.items() if path != MODULE}


# Whether the edit is in, what stands in the place of the module, what our record says of it, and
# what the patch is then.
STATES = [
    (False, None, None, "needed", ""),
    (False, TEXT, None, "needed", ""),
    (False, MINE, None, "drifted", f"{MODULE}: sought no such file, or the one that the patch"),
    (True, TEXT, None, "applied", ""),
    (True, None, None, "drifted", f"{MODULE}: sought the file that the patch adds; found none"),
    (True, MINE, None, "drifted", f"{MODULE}: sought no such file, or the one that the patch"),
    (True, TEXT, TEXT, "applied", ""),
    (True, None, TEXT, "tampered", f"{MODULE}: changed since it was written"),
    (True, MINE, TEXT, "tampered", f"{MODULE}: changed since it was written"),
    (True, MINE, MINE, "applied", ""),  # by an earlier program, which had another text
]


@pytest.mark.parametrize(("edit", "there", "written", "state", "says"), STATES)
@pytest.mark.parametrize("fork", [False, True])
def test_a_patch_is_in_when_both_its_edit_and_its_module_are(
    published: Source,
    edit: bool,
    there: bytes | None,
    written: bytes | None,
    state: str,
    says: str,
    fork: bool,
) -> None:
    """On a release and on a base of one's own, which nobody can tell whose fixes it has."""
    files = dict(folder.Files(published(RELEASE)))
    ours = edited(files)
    if fork:
        files[PATCH.header.touches[0]] += b"# ours\n"
        ours = edited(files)
    files |= ours if edit else {}
    files |= {MODULE: there} if there else {}
    said = Record("apply", "0", (SLUG,), {MODULE: known.digest(written)}) if written else None
    made, quick = (
        way([PATCH], files, version=RELEASE, record=said) for way in (plan.make, plan.quick)
    )
    expected = "upstream" if fork and state == "applied" and not said else state
    for one in (made, quick):
        assert one.steps[0].state.value == expected
        assert one.steps[0].detail.startswith(says)
        assert bool(one.steps[0].detail) == bool(says)
        assert one.release == (None if fork else RELEASE)
    assert (quick.before, quick.after) == (made.before, made.after)
    new = {MODULE: TEXT} if there is None else {}
    assert made.after == ({**ours, **new} if state == "needed" else {})
    assert MODULE not in made.before


@pytest.mark.parametrize("release", ["0.24.0", "0.32.0"])
def test_what_is_usually_chosen_is_known_without_the_edits(
    published: Source, monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    """They take half a second, and are there for what nobody has seen before."""
    core = [patch.slug for patch in series.load().core]
    chosen = [[], [SLUG], [*core, SLUG], *([slug] for slug in core)]
    choices = [series.load().patches, *map(series.load().select, chosen)]
    files = folder.Files(published(release))
    made = [plan.make(patches, files, version=release) for patches in choices]
    monkeypatch.delattr(plan, "make")
    for patches, one in zip(choices, made, strict=True):
        assert plan.quick(patches, files, version=release).after == one.after
        again = plan.quick(patches, {**files, **one.after}, version=release)
        assert (again.release, again.after) == (release, {})


def test_in_place_it_comes_and_goes(root: Path, mrv2: Mrv2) -> None:
    before = snapshot(root)
    done = mrv2("apply", root, "--patch", SLUG)
    assert done.returncode == 0, done
    assert f"changed {MODULE}\n" in done.stdout
    assert (root / MODULE).read_bytes() == TEXT
    assert MODULE in listed(root)
    assert wrong_rows(root) == []
    like, new = (root / "vllm/__init__.py").stat(), (root / MODULE).stat()
    assert (new.st_mode, new.st_uid) == (like.st_mode, like.st_uid)
    after = snapshot(root)
    assert "nothing to do" in mrv2("apply", root, "--patch", SLUG).stdout
    assert snapshot(root) == after
    compiled = (root / MODULE).parent / "__pycache__" / f"{Path(MODULE).stem}.cpython-311.pyc"
    compiled.parent.mkdir(exist_ok=True)
    compiled.write_bytes(b"as Python leaves it")
    done = mrv2("revert", root)
    assert done.returncode == 0, done
    assert f"changed {MODULE}\n" in done.stdout
    assert snapshot(root) == before


def test_in_place_it_goes_alone_and_the_core_stays(root: Path, mrv2: Mrv2) -> None:
    mrv2("apply", root)
    core = snapshot(root, times=False)
    mrv2("apply", root, "--patch", SLUG)
    assert (root / MODULE).read_bytes() == TEXT
    assert mrv2("revert", root, "--patch", SLUG).returncode == 0
    assert snapshot(root, times=False) == core
    assert wrong_rows(root) == []


def changed(path: Path) -> None:
    path.write_bytes(MINE)


def removed(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("tamper", [changed, removed])
def test_in_place_a_module_that_somebody_changed_is_left_alone_unless_told(
    root: Path, mrv2: Mrv2, tamper: Callable[[Path], None]
) -> None:
    before = snapshot(root)
    mrv2("apply", root, "--series", "all")
    tamper(root / MODULE)
    tampered = snapshot(root)
    assert f"{SLUG}: {MODULE}: changed since" in mrv2("status", root, "--patch", SLUG).stdout
    for command in ("apply", "revert"):
        done = mrv2(command, root)
        assert done.returncode == 3
        assert f"tampered: changed since mrv2 wrote it, and left alone: {MODULE}" in done.stderr
        assert snapshot(root) == tampered
    assert mrv2("revert", "--force", root).returncode == 0
    assert snapshot(root) == before


def test_a_module_of_that_name_which_is_not_ours_is_left_alone(root: Path, mrv2: Mrv2) -> None:
    (root / MODULE).write_bytes(MINE)
    before = snapshot(root)
    for command in ("status", "apply", "diff", "build"):
        done = mrv2(command, root, "--patch", SLUG)
        assert done.returncode == 3
        assert f"{SLUG}: " in done.stdout + done.stderr
        assert f"{MODULE}: sought no such file" in done.stdout + done.stderr
    assert snapshot(root) == before


def test_a_module_that_appears_while_it_is_planned_is_left_alone(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_for = Site.goal

    def disturbed(site: Site, made: plan.Plan | None) -> Goal:
        (root / MODULE).write_bytes(MINE)
        return looked_for(site, made)

    monkeypatch.setattr(Site, "goal", disturbed)
    before = snapshot(root)
    with pytest.raises(TargetUnusable, match=r"contract\.py: changed while it was read"):
        faults.apply(root)
    assert (root / MODULE).read_bytes() == MINE
    (root / MODULE).unlink()
    assert snapshot(root) == before


def test_a_module_that_an_earlier_program_wrote_is_renewed(
    root: Path, mrv2: Mrv2, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(root)
    with monkeypatch.context() as earlier:
        earlier.setattr(series.Patch, "_content", lambda self, path: MINE)
        faults.apply(root)
    assert (root / MODULE).read_bytes() == MINE
    assert mrv2("status", root, "--series", "all").returncode == 0
    assert mrv2("apply", root, "--series", "all").returncode == 0
    assert (root / MODULE).read_bytes() == TEXT
    assert wrong_rows(root) == []
    assert mrv2("revert", root).returncode == 0
    assert snapshot(root) == before


def test_a_diff_is_as_git_prints_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "new.py").write_bytes(TEXT)
    git(tmp_path, "add", "new.py")
    lines = git(tmp_path, "diff", "--cached", "--no-ext-diff").splitlines()
    expected = [line for line in lines if not line.startswith("index ")]
    assert printing.unified("new.py", None, TEXT, context=3).splitlines() == expected


# What a process does; the vLLM stands first on its path.
BEGIN = f"""
import importlib, json, pathlib, sys, types
import mrv2_fixes
from mrv2_fixes.plugin import hook, load
root = pathlib.Path(sys.path[1])
def spec():
    folder = str(root / {MODULE!r}).rpartition("/")[0]
    found = (finder.find_spec({NAME!r}, [folder], None) for finder in sys.meta_path)
    return next(filter(None, found), None)
load()
"""


def python(root: Path, script: str, into: Path, **variables: str) -> str:
    """What a process prints that loads the plugin and runs `script`."""
    file = into / "script.py"
    file.write_text(BEGIN + script)
    environ = {"PYTHONPATH": str(root), **variables}
    command = [sys.executable, str(file)]
    done = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def test_the_hook_serves_a_module_that_no_file_has(published: Source, tmp_path: Path) -> None:
    script = f"""
found = spec()
code = found.loader.get_code({NAME!r})
print(json.dumps([found.name, found.origin, code.co_filename, found.loader.get_source({NAME!r})]))
"""
    root = published(RELEASE)
    name, origin, place, text = json.loads(python(root, script, tmp_path, MRV2_FIXES=SLUG))
    assert (name, origin, place) == (NAME, str(root / MODULE), f"{hook_place()}/{MODULE}")
    assert text.encode() == TEXT
    assert python(root, "print(spec())", tmp_path) == "None\n"  # not for the core alone


def hook_place() -> str:
    from mrv2_fixes.plugin import hook

    return hook.PLACE


def test_the_hook_refuses_where_a_file_appears_meanwhile(source: Source, tmp_path: Path) -> None:
    script = f"""
found = spec()
for when in ("before", "after"):
    (root / {MODULE!r}).write_text("")
    found = spec() if when == "after" else found
    try:
        found.loader.get_code({NAME!r})
    except hook.NotServed as error:
        print(error)
"""
    said = python(source(RELEASE), script, tmp_path, MRV2_FIXES=SLUG).splitlines()
    assert len(said) == 2
    assert all(f"{MODULE}: changed since this process started" in line for line in said)


def test_report_has_the_module(published: Source, tmp_path: Path) -> None:
    """By its code in memory, as any other."""
    script = f"""
def show():
    report = mrv2_fixes.report()
    print(json.dumps([report["modules"][{NAME!r}], report["patches"][{SLUG!r}]]))
show()
found = spec()
module = sys.modules[{NAME!r}] = importlib.util.module_from_spec(found)
for code in found.loader.get_code({NAME!r}).co_consts:
    if isinstance(code, types.CodeType) and "<" not in code.co_name and code.co_flags & 1:
        setattr(module, code.co_name, types.FunctionType(code, {{}}))
show()
module.checked = lambda build: build
show()
"""
    out = python(published(RELEASE), script, tmp_path, MRV2_FIXES=SLUG)
    shown = [json.loads(line) for line in out.splitlines()]
    digest = known.digest(TEXT)
    assert [module for module, _ in shown] == [
        {"loaded": "not yet", "sha256": None},
        {"loaded": "import hook", "sha256": digest},
        {"loaded": "import hook", "sha256": None},
    ]
    assert [patch["how"] for _, patch in shown] == ["", "import hook", ""]


def test_a_wheel_lists_it(source: Source, mrv2: Mrv2, tmp_path: Path) -> None:
    """And what is installed from that says whose it is."""
    from . import wheels

    official = tmp_path / wheels.name_of(RELEASE)
    wheels.pack(wheels.files_of(source(RELEASE), RELEASE), official)
    done = mrv2("build", official, "--series", "all", "--output", tmp_path / "out")
    assert done.returncode == 0, done
    (patched,) = (tmp_path / "out" / RELEASE).glob("*.whl")
    site = tmp_path / "site"
    shutil.unpack_archive(patched, site, "zip")
    assert MODULE in listed(site)
    assert wrong_rows(site) == []
    assert json.loads((site / record.PATH).read_text())["files"][MODULE] == known.digest(TEXT)
    assert mrv2("status", site, "--series", "all").returncode == 0
