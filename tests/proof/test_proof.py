"""The whole claim, on the real engine: each fault is there without its patch, and only then."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

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
RELEASES = [
    *dict.fromkeys(job.release for job in verify.jobs(series.load().core, ())),
    # The newest with a build for the CPU.
    verify.jobs(series.load().patches, ())[-1].release,
]

# What the CPU engine of some releases cannot run, which says nothing of a GPU.
NOT_ON_THE_CPU = {
    # A compiled kernel is in its place; interpreted by that Triton it gives other values.
    "tests/v1/worker/test_mamba_hybrid_speculative_tensors.py"
    "::test_state_update_is_that_of_mamba_ssm": ">=0.32",
    # They want an expert-parallel group that V2 does not make yet.
    "tests/v1/worker/test_mamba_hybrid_first_token.py"
    "::test_begins_without_a_state[qwen3_next_wide": "<0.23",
    # CPU kernels of Mamba2 do not look at drafts.
    "tests/v1/worker/test_mamba_hybrid_placeholder_drafts.py"
    "::test_prompt_joins_decodes[granite": ">=0.27",
}

# The only reasons for which a test of the series may be skipped: for want of a GPU, or of what it
# is about.
GPU = ("Skipped: CUDA graphs need a GPU", "Skipped: attention kernels of a GPU")
ABSENT = ("Skipped: there is no MLA for the CPU", "Skipped: it has no prefill with context")
METHOD = " does not yet support: speculative method"


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


def files_on(release: str) -> list[str]:
    """The test files of the core and the check, and of what else the release needs."""
    patches = series.load()
    anywhere = (*patches.core, patches.patch("check-attn-metadata"))
    wanted = [one for one in patches.patches if one in anywhere or one.affects(release)]
    return sorted({path for one in wanted for path in one.header.adds if "/test_" in path})


def in_tree(release: str) -> engine.Report:
    """The tests of `files_on`, with the whole series in."""
    environment = engine.environment(release)
    files = folder.read(environment.site_packages).files
    made = plan.make(series.load().patches, files, version=release)
    tree = engine.patched_tree(environment, made.after, cache.folder())
    left_out = [
        f"--deselect={test}"
        for test, where in NOT_ON_THE_CPU.items()
        if release in SpecifierSet(where)
    ]
    return engine.run_tests(
        environment,
        tree,
        series.load().root / "tests",
        [*files_on(release), *left_out],
        lift_hybrid=True,
        timeout=TIMEOUT,
    )


@pytest.fixture(scope="session")
def reports(verified: list[dict[str, object]]) -> dict[str, Future[engine.Report]]:
    """The reports of every release, made several at a time, once the engine is free."""
    pool = ThreadPoolExecutor(WORKERS)
    return {release: pool.submit(in_tree, release) for release in RELEASES}


@pytest.mark.parametrize("release", RELEASES)
def test_every_test_of_the_series_passes(
    reports: dict[str, Future[engine.Report]], release: str
) -> None:
    check(release, reports[release].result())


def check(release: str, report: engine.Report) -> None:
    assert not report.timed_out, report.output
    wrong = [
        (test.id, test.outcome, test.reason or test.failure)
        for test in report.tests
        if test.outcome != "passed"
        and test.reason not in (*GPU, *ABSENT)
        and METHOD not in str(test.reason)
    ]
    assert not wrong, (wrong, report.output)
    for file in files_on(release):
        assert [test for test in report.of(file) if test.outcome == "passed"], file
    for patch in series.load().core:
        for file in patch.header.adds:
            if "/test_" in file:
                assert [one for one in report.of(file) if one.reason in GPU], f"no GPU case: {file}"


def test_the_newest_release_is_one_of_the_known() -> None:
    """Otherwise the data are old: `make known` renews them."""
    assert engine.newest() in known.releases()
