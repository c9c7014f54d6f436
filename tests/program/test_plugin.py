"""The plugin, in processes of its own, with the real files of a release as its vLLM."""

from __future__ import annotations

import importlib.util
import json
import py_compile
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mrv2_fixes
from mrv2_fixes import known, plan, series
from mrv2_fixes.plugin import running
from mrv2_fixes.targets import folder

from .conftest import Mrv2, Source

pytestmark = pytest.mark.releases

PACKAGE = "vllm/v1/worker/gpu"
HYBRID = f"{PACKAGE}/model_states/mamba_hybrid.py"
MODULE = "vllm.v1.worker.gpu.model_states.mamba_hybrid"
BATCH, FORWARD, GATE = (patch.slug for patch in series.load().core)
AFFECTED = ["0.21.0", "0.22.0", "0.22.1", "0.23.0", "0.24.0"]

BOUND = "seq_lens_cpu_upper_bound=None"

# What every script begins with. `spec` is what an import of the module would get; the module itself
# needs all of vLLM, which test_serving has.
BEGIN = f"""
import json, os, pathlib, sys, types
import logging; logging.basicConfig(level="INFO", format="%(levelname)s %(message)s")
import mrv2_fixes
from mrv2_fixes.plugin import load
root = pathlib.Path(sys.path[1])
def spec(name={MODULE!r}):
    folder = root.joinpath(*name.split(".")[:-1])
    for finder in sys.meta_path:
        found = finder.find_spec(name, [str(folder)], None)
        if found: return found
def show(value): print(json.dumps(value))
"""

Python = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def python(tmp_path: Path) -> Python:
    """Run a script behind `BEGIN`, with `root` as the folder of its vLLM."""

    def run(root: Path, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "script.py"
        file.write_text(BEGIN + script)
        return subprocess.run(
            [sys.executable, file],
            env={"PYTHONPATH": str(root), **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def drift(root: Path) -> None:
    """A release in which the place of one fix, and of no other, is another."""
    path = root / HYBRID
    text = path.read_text().replace("if not for_capture:", "if not for_capture and self.on:")
    path.write_text(text)


def newer(root: Path) -> None:
    """The same, in what says that it is a release that nobody has seen yet."""
    drift(root)
    metadata = next(root.glob("*.dist-info/METADATA"))
    metadata.write_text("Metadata-Version: 2.4\nName: vllm\nVersion: 0.99.0\n\n")


def interrupt(root: Path) -> None:
    """A release in which an `mrv2 apply` has begun, and has not been finished."""
    (root / "vllm" / ".mrv2-fixes.journal").write_text("{}")


def apply(root: Path, *slugs: str) -> None:
    target = folder.read(root)
    made = plan.make(series.load().select(slugs), target.files, version=target.version)
    for path, text in made.after.items():
        (root / path).write_bytes(text)


@pytest.mark.parametrize("release", AFFECTED)
def test_served_modules_are_those_of_the_plan(
    published: Source, python: Python, release: str
) -> None:
    root = published(release)
    files = folder.read(root).files
    after = plan.make(series.load().core, files, version=release).after
    done = python(
        root,
        "load()\n"
        "finder = sys.meta_path[0]\n"
        "for name in finder.sources: spec(name).loader.get_code(name)\n"
        "show(finder.loaded)",
    )
    assert done.returncode == 0, done.stderr
    touched = {path for patch in series.load().core for path in patch.header.touches}
    assert json.loads(done.stdout) == {
        path.removesuffix(".py").replace("/", "."): known.digest(after.get(path, files[path]))
        for path in touched
        if path in files
    }


# Why it is there; the vLLM; MRV2_FIXES; what the process ends with; what it must say.
STARTS = [
    ("strict by default", None, "", 0, f"{FORWARD} import hook, {GATE} import hook"),
    ("strict", None, "strict", 0, f"{BATCH} base"),
    ("a slug alone", None, FORWARD, 0, f"0.24.0: {FORWARD} import hook\n"),
    ("a slug with what it requires", None, GATE, 0, f"{FORWARD} import hook, {GATE} import hook"),
    ("a mode and a slug", None, f"warn,{FORWARD}", 0, f"0.24.0: {FORWARD} import hook\n"),
    ("all groups", None, "all", 0, f"{GATE} import hook"),
    ("off", None, "off", 0, "off (MRV2_FIXES=off)"),
    ("no such patch", None, "gate", 1, "MRV2_FIXES=gate: no patch 'gate': the series has"),
    ("two modes", None, "strict,off", 1, "want one of strict, warn and off"),
    ("a group and a slug", None, f"all,{GATE}", 1, "either core, all or slugs"),
    ("drifted, strict", drift, "", 1, f"refusing to start: {GATE}: drifted: {HYBRID}: Mamba"),
    ("drifted, the way out", drift, "", 1, "MRV2_FIXES=warn starts without"),
    ("drifted, newer", newer, "", 1, f"has {GATE} since 0.25.0, and this one says 0.99.0. MRV2_F"),
    ("drifted, warn", drift, "warn", 0, f"WARNING mrv2-fixes: {GATE} is NOT in this process"),
    ("the rest under warn", drift, "warn", 0, f"unknown base: {BATCH} base, {FORWARD} import hook"),
    ("drifted, not selected", drift, FORWARD, 0, f"{FORWARD} import hook"),
    ("an interrupted apply", interrupt, "", 1, "run mrv2 apply or mrv2 revert there"),
    ("the same under warn", interrupt, "warn", 1, "run mrv2 apply or mrv2 revert there"),
    ("in the files already", apply, "", 0, f"{FORWARD} base, {GATE} base"),
]


@pytest.mark.parametrize(
    ("change", "setting", "status", "says"),
    [row[1:] for row in STARTS],
    ids=[row[0] for row in STARTS],
)
def test_what_starts_and_what_is_said(
    source: Source,
    python: Python,
    change: Callable[[Path], None] | None,
    setting: str,
    status: int,
    says: str,
) -> None:
    root = source("0.24.0")
    if change:
        change(root)
    done = python(root, "load()", MRV2_FIXES=setting)
    assert done.returncode == status, done.stderr
    assert says in done.stderr


def test_a_second_call_and_a_fork_change_nothing(published: Source, python: Python) -> None:
    done = python(
        published("0.24.0"),
        "load(); load()\n"
        "from mrv2_fixes.plugin.hook import Finder\n"
        "show(sum(isinstance(finder, Finder) for finder in sys.meta_path))\n"
        "sys.stdout.flush()\n"
        "if os.fork() == 0:\n"
        "    load(); spec().loader.get_code(spec().name)\n"
        "    show(mrv2_fixes.report()['patches'])\n"
        "else:\n"
        "    assert os.wait()[1] == 0",
    )
    assert done.returncode == 0, done.stderr
    finders, patches = map(json.loads, done.stdout.splitlines())
    assert finders == 1
    assert patches[GATE] == {"state": "applied", "how": "import hook", "note": ""}
    # One line of each process.
    assert done.stderr.count(f"{GATE} import hook") == 2


# A module that is there already, as a stand-in for one that another plugin imported.
EARLY = f"sys.modules[{MODULE!r}] = types.ModuleType({MODULE!r})\n"


def test_a_module_imported_before_the_hook_is_refused(published: Source, python: Python) -> None:
    root = published("0.24.0")
    done = python(root, f"{EARLY}load()")
    assert done.returncode == 1
    assert f"{GATE}: {MODULE} imported before the plugin was loaded" in done.stderr
    warned = python(root, f"{EARLY}load()\nshow(mrv2_fixes.report())", MRV2_FIXES="warn")
    said = json.loads(warned.stdout)
    assert said["patches"][GATE]["state"] == "needed"
    assert said["patches"][GATE]["note"] == f"{MODULE} imported before the plugin was loaded"
    assert said["modules"][MODULE] == {"loaded": "unseen", "sha256": None}


def test_a_module_imported_before_the_hook_that_needs_nothing_is_left(
    source: Source, python: Python
) -> None:
    root = source("0.24.0")
    apply(root)
    done = python(root, f"{EARLY}load()\nshow(mrv2_fixes.report())")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["patches"][GATE]["state"], said["patches"][GATE]["how"]) == ("applied", "base")


def test_report_says_only_what_was_loaded(published: Source, python: Python) -> None:
    """Before the import, and when something else than the hook has loaded the module."""
    root = published("0.24.0")
    script = f"load(); show(mrv2_fixes.report())\n{EARLY}show(mrv2_fixes.report())"
    before, bypassed = map(json.loads, python(root, script).stdout.splitlines())
    assert before["patches"][GATE] == {"state": "needed", "how": "", "note": "not imported yet"}
    assert bypassed["patches"][GATE]["note"] == f"{MODULE} imported without the hook"
    without = json.loads(python(root, "show(mrv2_fixes.report())").stdout)
    assert without["plugin"] == "not loaded"
    assert without["patches"][GATE]["state"] == "needed"


def test_a_file_that_changes_after_the_start_is_not_served(source: Source, python: Python) -> None:
    root = source("0.24.0")
    done = python(
        root,
        "load(); found = spec()\n"
        f"file = root / {HYBRID!r}; file.write_text(file.read_text() + '#')\n"
        "found.loader.get_code(found.name)",
    )
    assert done.returncode == 1
    assert f"{HYBRID}: changed since this process started: start it again" in done.stderr


def test_what_is_planned_is_what_is_expected(source: Source, python: Python) -> None:
    """Also when a file changes while the process starts: it is read once."""
    done = python(
        source("0.24.0"),
        "from mrv2_fixes.plugin import start\n"
        f"files = start.vllm().files; text = files[{HYBRID!r}]\n"
        f"(root / {HYBRID!r}).write_text(''); show(files[{HYBRID!r}] == text)",
    )
    assert json.loads(done.stdout) is True


def test_a_compiled_file_has_no_part_in_what_is_served(source: Source, python: Python) -> None:
    """Not even one that Python itself would take unseen."""
    root = source("0.24.0")
    path = root / HYBRID
    cached = Path(importlib.util.cache_from_source(str(path)))
    other = root / "other.py"
    other.write_text("other = True\n")
    py_compile.compile(
        str(other), str(cached), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    script = "found = spec(); show(found.loader.get_code(found.name).co_names)"
    assert "other" in python(root, script).stdout
    assert "other" not in python(root, "load(); " + script).stdout


def test_another_hook_for_the_same_module_is_refused(published: Source, python: Python) -> None:
    done = python(
        published("0.24.0"),
        "import importlib.machinery\n"
        "class Other:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {MODULE!r}: return importlib.machinery.ModuleSpec(name, self)\n"
        f"sys.meta_path.insert(0, Other()); load(); spec({MODULE!r})",
    )
    assert done.returncode == 1
    assert f"{MODULE}: " in done.stderr
    assert "gives a loader of its own" in done.stderr


def test_the_entry_point_imports_nothing(python: Python, tmp_path: Path) -> None:
    """vLLM would swallow the error of an import there, and serve without the fixes."""
    script = "show([name for name in sys.modules if name.startswith('mrv2_fixes')])"
    done = python(tmp_path, script)
    assert json.loads(done.stdout) == ["mrv2_fixes", "mrv2_fixes.plugin"]
    missing = python(tmp_path, "sys.modules['msgspec'] = None\nload()")
    assert missing.returncode == 1


def test_the_package_registers_with_vllm_by_the_name_that_it_says() -> None:
    from importlib.metadata import entry_points

    from mrv2_fixes import plugin

    (point,) = entry_points(group="vllm.general_plugins", name=plugin.NAME)
    assert point.load() is plugin.load


def a_report(**modules: str | None) -> dict[str, Any]:
    """What a worker would say of modules, by name the hash of what was loaded."""
    loaded = {
        name: {"loaded": "import hook" if sha256 else "not yet", "sha256": sha256}
        for name, sha256 in modules.items()
    }
    waiting = not any(modules.values())
    patch = {"state": "needed" if waiting else "applied", "note": running.WAITING * waiting}
    return {"pid": id(modules), "plugin": "strict", "modules": loaded, "patches": {GATE: patch}}


def test_workers_that_differ_are_named() -> None:
    first, same = a_report(hybrid="a"), a_report(hybrid="a")
    assert mrv2_fixes.compare([first, same]) == first
    other, off = a_report(hybrid="b"), {**same, "plugin": "off"}
    with pytest.raises(running.Mismatch) as raised:
        mrv2_fixes.compare([first, same, other, off])
    assert "rank 2 has modules hybrid sha256 'b' (rank 0: 'a')" in str(raised.value)
    assert "rank 3 has plugin 'off' (rank 0: 'strict')" in str(raised.value)
    assert "rank 1 has" not in str(raised.value)


def test_a_worker_that_has_no_use_for_a_module_is_no_other() -> None:
    """Of pipeline parallel workers only the last imports the speculator."""
    reports = [a_report(hybrid="a", speculator=None), a_report(hybrid="a", speculator="b")]
    assert mrv2_fixes.compare(reports) == reports[0]
    assert mrv2_fixes.compare([a_report(hybrid=None), a_report(hybrid="a")])
    with pytest.raises(running.Mismatch):
        mrv2_fixes.compare([a_report(hybrid="b", speculator=None), reports[1]])


# Variables of the environment; the exit status; what `status` says of a server started there.
SERVERS = [
    ({}, 0, f"starts, and the import hook brings in {FORWARD}, {GATE}"),
    ({"VLLM_PLUGINS": "mrv2_fixes,x"}, 0, "starts, and the import hook brings in"),
    ({"VLLM_PLUGINS": "x"}, 1, "starts as its files are: VLLM_PLUGINS=x leaves mrv2_fixes out"),
    ({"MRV2_FIXES": "off"}, 1, "starts as its files are: MRV2_FIXES=off"),
    ({"MRV2_FIXES": FORWARD}, 1, f"brings in {FORWARD}\n"),
    ({"MRV2_FIXES": "x"}, 2, "MRV2_FIXES=x: no patch 'x'"),
]


@pytest.mark.parametrize(("variables", "status", "says"), SERVERS)
def test_status_says_what_a_server_started_here_would_run(
    published: Source, mrv2: Mrv2, variables: dict[str, str], status: int, says: str
) -> None:
    done = mrv2("status", env={"PYTHONPATH": str(published("0.24.0")), **variables})
    assert done.returncode == status, done.stderr
    assert says in done.stdout + done.stderr


def test_status_leaves_out_what_a_server_leaves_out(source: Source, mrv2: Mrv2) -> None:
    """Also what requires a patch that does not fit."""
    root = source("0.24.0")
    path = root / HYBRID
    path.write_text(
        path.read_text().replace("dcp_local_seq_lens=", f"{BOUND}, dcp_local_seq_lens=")
    )
    done = mrv2("status", env={"PYTHONPATH": str(root), "MRV2_FIXES": "warn"})
    assert f"starts, and nothing to do; NOT in: {FORWARD}, {GATE}" in done.stdout
    assert done.returncode == 3


def test_status_says_that_a_server_would_not_start(source: Source, mrv2: Mrv2) -> None:
    root = source("0.24.0")
    drift(root)
    done = mrv2("status", env={"PYTHONPATH": str(root)})
    assert done.returncode == 3
    assert f"does not start: {GATE}: neither in nor unnecessary" in done.stdout
