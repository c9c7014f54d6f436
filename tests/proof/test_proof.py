"""The whole claim, on the real engine: each fault is there without its patch, and only then."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from mrv2_fixes import cache, engine, known, plan, series, verify
from mrv2_fixes.cli import WORKERS
from mrv2_fixes.targets import folder

pytestmark = pytest.mark.engine

TIMEOUT = 600.0
CELLS = [
    (job.release, job.patch.slug, reproducer)
    for job in verify.jobs(series.load().patches, ())
    for reproducer in job.reproducers
]
# Those that the core is for; on the others, a patch's own reproducers have to do.
RELEASES = list(dict.fromkeys(job.release for job in verify.jobs(series.load().core, ())))
NEWEST = "newest"

# The CPU engine of 0.32.0 has a compiled kernel in its place; interpreted by the Triton of that
# release it gives other values than the reference, which says nothing of a GPU.
NOT_ON_NEWEST = (
    "--deselect=tests/v1/worker/test_mamba_hybrid_speculative_tensors.py"
    "::test_state_update_is_that_of_mamba_ssm"
)

# The only reasons for which a test of the series may be skipped: for want of a GPU, or of what it
# is about.
GPU = ("Skipped: CUDA graphs need a GPU", "Skipped: attention kernels of a GPU")
ABSENT = ("Skipped: there is no MLA for the CPU", "Skipped: it has no prefill with context")


@pytest.fixture(scope="session")
def verified(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> list[dict[str, object]]:
    """What `mrv2 verify` says of every cell; its progress goes where pytest's does."""
    mrv2 = Path(sys.executable).with_name("mrv2")
    where = tmp_path_factory.mktemp("verify")
    with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(flush=True)
        done = subprocess.run(
            [mrv2, "verify", "--series", "all", "--json"],
            cwd=where,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    cells: list[dict[str, object]] = json.loads(done.stdout)
    assert cells == json.loads((where / "dist" / "verify.json").read_text())
    assert (done.returncode == 0) is all(
        (cell["without"], cell["with"]) == ("fails as declared", "passes") for cell in cells
    )
    return cells


@pytest.mark.parametrize(
    "index", range(len(CELLS)), ids=[f"{release}-{slug}" for release, slug, _ in CELLS]
)
def test_fails_without_and_passes_with(verified: list[dict[str, object]], index: int) -> None:
    (release, slug, reproducer), cell = CELLS[index], verified[index]
    assert (cell["patch"], cell["release"]) == (slug, release)
    assert cell["reproducer"] == reproducer.test
    assert (cell["without"], cell["with"]) == ("fails as declared", "passes"), cell["sides"]
    sides = cell["sides"]
    assert isinstance(sides, list)
    for side in sides:
        assert side["versions"]["vllm"].startswith(release)
        assert side["lifted"] == ([reproducer.lift] if reproducer.lift else [])


def in_tree(release: str, *options: str) -> engine.Report:
    """Every test that the series adds, on a release with the whole series in."""
    environment = engine.environment(release)
    files = folder.read(environment.site_packages).files
    made = plan.make(series.load().patches, files, version=release)
    tree = engine.patched_tree(environment, made.after, cache.folder())
    root = series.load().root / "tests"
    return engine.run_tests(
        environment, tree, root, ["tests/v1", *options], lift_hybrid=True, timeout=TIMEOUT
    )


@pytest.fixture(scope="session")
def reports(verified: list[dict[str, object]]) -> dict[str, Future[engine.Report]]:
    """The reports of every release, made several at a time, once the engine is free."""
    pool = ThreadPoolExecutor(WORKERS)
    futures = {release: pool.submit(in_tree, release) for release in RELEASES}
    return futures | {NEWEST: pool.submit(in_tree, engine.newest(), NOT_ON_NEWEST)}


@pytest.mark.parametrize("name", [*RELEASES, NEWEST])
def test_every_test_of_the_series_passes(
    reports: dict[str, Future[engine.Report]], name: str
) -> None:
    report = reports[name].result()
    assert not report.timed_out, report.output
    gpu = [test.id for test in report.tests if test.reason in GPU]
    wrong = [
        (test.id, test.outcome, test.reason or test.failure)
        for test in report.tests
        if test.outcome != "passed" and test.reason not in (*GPU, *ABSENT)
    ]
    assert not wrong, report.output
    files = {path for patch in series.load().patches for path in patch.header.adds}
    for file in files:
        if "def test_" in (series.load().root / file).read_text():
            assert [test for test in report.of(file) if test.outcome == "passed"], file
            assert [test for test in gpu if test.startswith(file)], f"no GPU case in {file}"


def test_the_newest_release_is_one_of_the_known() -> None:
    """Otherwise the data are old: `make known` renews them."""
    assert engine.newest() in known.releases()
