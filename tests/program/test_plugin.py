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

from .conftest import HYBRID, Mrv2, Source

pytestmark = pytest.mark.releases

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


# Why it is there; the vLLM; MRV2_FIXES; what the process ends with; what it must say.
STARTS = [
    ("strict by default", None, "", 0, f"{FORWARD} import hook, {GATE} import hook"),
    ("strict", None, "strict", 0, f"{BATCH} upstream"),
    ("a slug alone", None, FORWARD, 0, f"0.24.0: {FORWARD} import hook\n"),
    ("a slug with what it requires", None, GATE, 0, f"{FORWARD} import hook, {GATE} import hook"),
    ("a mode and a slug", None, f"warn,{FORWARD}", 0, f"0.24.0: {FORWARD} import hook\n"),
    ("all groups", None, "all", 0, f"{GATE} import hook"),
    ("off", None, "off", 0, "off (MRV2_FIXES=off)"),
    ("off, in capitals", None, "OFF", 0, "off (MRV2_FIXES=off)"),
    ("a group in capitals", None, "Core", 0, f"{FORWARD} import hook, {GATE} import hook"),
    ("no such patch", None, "gate", 1, f"or slugs: the series has {BATCH}, {FORWARD}, {GATE}"),
    ("no such mode", None, "on", 1, "=on: unknown on: want strict, warn, off, core, all or slugs"),
    ("two modes", None, "strict,off", 1, "want one of strict, warn and off"),
    ("a group and a slug", None, f"all,{GATE}", 1, "either core, all or slugs"),
    ("drifted, strict", drift, "", 1, f"refusing to start: {GATE}: drifted: {HYBRID}: Mamba"),
    ("drifted, the way out", drift, "", 1, "MRV2_FIXES=warn starts without"),
    ("drifted, newer", newer, "", 1, f"vLLM has {GATE} since 0.25.0, and this one says 0.99.0"),
    ("drifted, warn", drift, "warn", 0, f"WARNING mrv2-fixes: {GATE} is NOT in this process"),
    (
        "the rest under warn",
        drift,
        "warn",
        0,
        f"unknown base: {BATCH} upstream, {FORWARD} import hook",
    ),
    ("drifted, not selected", drift, FORWARD, 0, f"{FORWARD} import hook"),
    ("an interrupted apply", interrupt, "", 1, "run mrv2 apply or mrv2 revert there"),
    ("the same under warn", interrupt, "warn", 1, "run mrv2 apply or mrv2 revert there"),
    ("in the files already", apply, "", 0, f"{FORWARD} applied, {GATE} applied"),
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
        "    show(spec().loader.planned().decode())\n"
        "else:\n"
        "    assert os.wait()[1] == 0",
    )
    assert done.returncode == 0, done.stderr
    finders, planned = map(json.loads, done.stdout.splitlines())
    assert finders == 1
    assert "self.vllm_config.num_speculative_tokens > 0" in planned
    # One line of each process.
    assert done.stderr.count(f"{GATE} import hook") == 2


# A module that is there already, with the functions that a text has, as if it had been imported: an
# import needs all of vLLM.
EARLY = f"""
def early(text):
    module = types.ModuleType({MODULE!r})
    for part in compile(text, module.__name__, "exec").co_consts:
        if isinstance(part, types.CodeType) and not part.co_flags & 1:
            codes = [code for code in part.co_consts if isinstance(code, types.CodeType)]
            made = {{
                code.co_name: types.FunctionType(
                    code, {{}}, closure=tuple(types.CellType() for _ in code.co_freevars)
                )
                for code in codes
            }}
            setattr(module, part.co_name, type(part.co_name, (), made))
    sys.modules[module.__name__] = module
file = root / {HYBRID!r}
"""


def test_a_module_imported_before_the_hook_is_refused(published: Source, python: Python) -> None:
    root = published("0.24.0")
    script = f"{EARLY}early(file.read_bytes())\nload()\n"
    done = python(root, script)
    assert done.returncode == 1
    assert f"{GATE}: {MODULE} was imported before the plugin was loaded" in done.stderr
    warned = python(root, script + "show(mrv2_fixes.report())", MRV2_FIXES="warn")
    said = json.loads(warned.stdout)
    assert said["patches"][GATE]["state"] == "needed"
    assert f"{MODULE} was imported before" in said["patches"][GATE]["note"]
    assert said["modules"][MODULE]["loaded"] == "file"


def test_a_module_imported_before_the_hook_that_needs_nothing_is_left(
    source: Source, python: Python
) -> None:
    root = source("0.24.0")
    apply(root)
    done = python(root, f"{EARLY}early(file.read_bytes())\nload()\nshow(mrv2_fixes.report())")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["patches"][GATE]["state"], said["patches"][GATE]["how"]) == ("applied", "base")
    digest = known.digest((root / HYBRID).read_bytes())
    assert said["modules"][MODULE] == {"loaded": "file", "sha256": digest}


def test_a_file_that_was_applied_after_its_import_is_refused(
    source: Source, python: Python
) -> None:
    """The files are right, and what is in memory is the old code."""
    root = source("0.24.0")
    faulty = (root / HYBRID).read_bytes()
    apply(root)
    script = f"{EARLY}early({faulty!r})\n"
    assert f"{GATE}: {MODULE} was imported before" in python(root, f"{script}load()").stderr
    said = json.loads(python(root, f"{script}show(mrv2_fixes.report())").stdout)
    assert said["patches"][GATE]["state"] == "needed"


def test_report_says_only_what_is_in_memory(published: Source, python: Python) -> None:
    """Before the import, after it, and when something else has put another module there."""
    root = published("0.24.0")
    script = (
        f"{EARLY}load(); show(mrv2_fixes.report())\n"
        "early(spec().loader.planned()); show(mrv2_fixes.report())\n"
        "early(file.read_bytes()); show(mrv2_fixes.report())"
    )
    done = python(root, script)
    before, after, other = (json.loads(line)["patches"] for line in done.stdout.splitlines())
    assert before[GATE] == {"state": "needed", "how": "", "note": "not imported yet"}
    assert after[GATE] == {"state": "applied", "how": "import hook", "note": ""}
    assert other[GATE]["state"] == "needed"
    assert other[GATE]["note"] == f"{MODULE}: the code in memory is not that of the text"
    without = json.loads(python(root, "show(mrv2_fixes.report())").stdout)
    assert without["plugin"] == "not loaded"
    assert without["patches"][GATE]["state"] == "needed"


def test_report_is_of_what_was_started_with(source: Source, python: Python) -> None:
    """Whatever becomes of the files of a process that runs."""
    root = source("0.24.0")
    script = "load(); first = mrv2_fixes.report()\n"
    script += f"(root / {HYBRID!r}).unlink(); (root / 'vllm/.mrv2-fixes.journal').write_text('')\n"
    assert json.loads(python(root, script + "show(mrv2_fixes.report() == first)").stdout)


# vLLM's own note that its plugins are loaded, which it makes before it calls them.
PLUGINS = """
plugins = sys.modules["vllm.plugins"] = types.ModuleType("vllm.plugins")
plugins.plugins_loaded = True
try: load()
except Exception: show(plugins.plugins_loaded)
"""


def test_what_was_refused_is_refused_again(published: Source, python: Python) -> None:
    """A second engine in the same process would otherwise start without the fixes."""
    done = python(published("0.24.0"), PLUGINS, MRV2_FIXES="nonsense")
    assert json.loads(done.stdout) is False


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


# Other hooks that handle the module: with a loader of their own, and as a tracer wraps one.
OTHERS = f"""
import importlib.machinery
class Other(importlib.machinery.SourceFileLoader): pass
class Wrapped:
    def __init__(self, loader): self.loader = loader
class Finder:
    def __init__(self, wrap): self.wrap = wrap
    def find_spec(self, name, path=None, target=None):
        found = importlib.machinery.PathFinder.find_spec(name, path)
        if name == {MODULE!r}: found.loader = self.wrap(found.loader)
        return found
"""


def test_another_hook_for_the_same_module(
    published: Source, source: Source, python: Python
) -> None:
    root = published("0.24.0")
    other = "sys.meta_path.insert(0, Finder(lambda loader: Other(loader.name, loader.path)))\n"
    refused = python(root, f"{OTHERS}{other}load(); spec()")
    assert refused.returncode == 1
    assert f"{MODULE}: " in refused.stderr
    assert "loads it in a way of its own: remove that hook" in refused.stderr
    warned = python(root, f"{OTHERS}{other}load(); spec()", MRV2_FIXES="warn")
    assert warned.returncode == 0
    assert "mrv2-fixes: NOT as planned: " in warned.stderr
    # where nothing is to be changed, nothing is in the way
    done = source("0.24.0")
    apply(done)
    assert python(done, f"{OTHERS}{other}load(); spec()").returncode == 0
    tracer = "sys.meta_path.insert(0, Finder(Wrapped))\n"
    traced = python(root, f"{OTHERS}{tracer}load(); show(spec().loader.loader.planned().decode())")
    assert "self.vllm_config.num_speculative_tokens > 0" in traced.stdout


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
    ({"MRV2_FIXES": "x"}, 2, "MRV2_FIXES=x: unknown x: want strict, warn"),
]


@pytest.mark.parametrize(("variables", "status", "says"), SERVERS)
def test_status_says_what_a_server_started_here_would_run(
    published: Source, mrv2: Mrv2, variables: dict[str, str], status: int, says: str
) -> None:
    done = mrv2("status", env={"PYTHONPATH": str(published("0.24.0")), **variables})
    assert done.returncode == status, done.stderr
    assert says in done.stdout + done.stderr


def test_the_module_finds_what_a_server_would_import(source: Source) -> None:
    """And not a vLLM that lies in the folder at hand."""
    root, here = source("0.24.0"), source("0.33.0")
    command = [sys.executable, "-m", "mrv2_fixes", "status"]
    done = subprocess.run(
        command, cwd=here, env={"PYTHONPATH": str(root)}, capture_output=True, text=True, check=True
    )
    assert f"{root / 'vllm'} (installed): files of 0.24.0" in done.stdout


def test_status_leaves_out_what_a_server_leaves_out(source: Source, mrv2: Mrv2) -> None:
    """Also what requires a patch that does not fit."""
    root = source("0.24.0")
    path = root / HYBRID
    path.write_text(
        path.read_text().replace("dcp_local_seq_lens=", f"{BOUND}, dcp_local_seq_lens=")
    )
    done = mrv2("status", env={"PYTHONPATH": str(root), "MRV2_FIXES": "warn"})
    assert (
        f"starts, and the import hook has nothing to bring in; NOT in: {FORWARD}, {GATE}"
        in done.stdout
    )
    assert done.returncode == 3


def test_status_says_that_a_server_would_not_start(source: Source, mrv2: Mrv2) -> None:
    root = source("0.24.0")
    drift(root)
    done = mrv2("status", env={"PYTHONPATH": str(root)})
    assert done.returncode == 3
    assert (
        f"does not start, since these do not fit: {GATE}; MRV2_FIXES=warn starts without"
        in done.stdout
    )
