"""Proof: for each patch and release, the reproducer fails without the patch and passes with it.

Without: the release as published, with the patches that the patch requires. With: and with the
patch. Both on the real engine. Only a failure as the header declares it, and then a pass, is proof.
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import msgspec
from packaging.version import Version

from mrv2_fixes import cache, engine, known, plan
from mrv2_fixes.errors import Drifted
from mrv2_fixes.series import Failure, Patch, Reproducer, Series
from mrv2_fixes.targets import folder

# Seconds for one side of a cell; the slowest takes a quarter of it on two slow cores.
TIMEOUT = 400.0


class Result(str, enum.Enum):
    """What one side of a cell came to."""

    PASSES = "passes"
    FAILS = "fails as declared"
    FAILS_OTHERWISE = "fails in another way"
    DID_NOT_RUN = "did not run"


class Side(msgspec.Struct, frozen=True):
    """One run of a reproducer, together with others of its patch.

    patches: the slugs that were in. seconds: of the whole run. detail: what was seen, in one line.
    lifted: refusals at configuration that were lifted for it. output: the end of what was printed,
    unless it passed.
    """

    result: Result
    patches: tuple[str, ...]
    seconds: float
    detail: str
    versions: Mapping[str, str]
    lifted: tuple[str, ...]
    output: str


class Cell(msgspec.Struct, frozen=True, rename={"without": "without", "with_": "with"}):
    """One patch on one release, by one reproducer."""

    patch: str
    release: str
    reproducer: str
    without: Result
    with_: Result
    seconds: float
    date: str
    sides: tuple[Side, Side]

    @property
    def proven(self) -> bool:
        """Whether the fault was there without the patch, and only then."""
        return self.without is Result.FAILS and self.with_ is Result.PASSES


class Job(msgspec.Struct, frozen=True):
    """What runs together: one patch on one release, by reproducers with the same refusal lifted."""

    patch: Patch
    release: str
    reproducers: tuple[Reproducer, ...]


def jobs(selected: Sequence[Patch], releases: Sequence[str]) -> list[Job]:
    """What there is to run for `selected` on `releases`; without releases, all that is affected.

    Raises TargetUnusable for a release that is not among the known ones.
    """
    wanted = []
    for release in map(known.number, releases or known.releases()):
        for patch in selected:
            reproducers = patch.reproducers(release) if patch.affects(release) else ()
            for lift in dict.fromkeys(one.lift for one in reproducers):
                alike = tuple(one for one in reproducers if one.lift == lift)
                wanted.append(Job(patch, release, alike))
    return wanted


def run(
    wanted: Sequence[Job],
    series: Series,
    progress: Callable[[str], None],
    workers: int = 2,
) -> list[Cell]:
    """Run every job, `workers` at a time, and return its cells in the order of `wanted`.

    Raises EngineError when an environment cannot be made, Drifted when a patch does not fit.
    """
    for release in dict.fromkeys(job.release for job in wanted):
        engine.environment(release, progress=progress)
    progress(f"{2 * len(wanted)} runs of an engine, {workers} at a time")
    done: dict[int, list[Cell]] = {}
    with ThreadPoolExecutor(workers) as pool:
        running = {pool.submit(cells, job, series): i for i, job in enumerate(wanted)}
        try:
            for future in as_completed(running):
                done[running[future]] = future.result()
                for cell in future.result():
                    progress(
                        f"{len(done)}/{len(wanted)} {cell.release} {cell.patch}: "
                        f"{cell.without.value} without, {cell.with_.value} with "
                        f"({cell.seconds:.0f} s)"
                    )
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            engine.stop()
            raise
    return [cell for index in range(len(wanted)) for cell in done[index]]


def cells(job: Job, series: Series) -> list[Cell]:
    """Run a job's reproducers without and with its patch: a cell for each."""
    chosen = series.select([job.patch.slug])
    required = tuple(patch for patch in chosen if patch is not job.patch)
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    runs = [(patches, _run(job, series, patches)) for patches in (required, chosen)]
    made = []
    for reproducer in job.reproducers:
        without, with_ = (_side(reproducer, *one) for one in runs)
        made.append(
            Cell(
                patch=job.patch.slug,
                release=job.release,
                reproducer=reproducer.test,
                without=without.result,
                with_=with_.result,
                seconds=round(without.seconds + with_.seconds, 1),
                date=started,
                sides=(without, with_),
            )
        )
    return made


def _run(job: Job, series: Series, patches: Sequence[Patch]) -> engine.Report:
    environment = engine.environment(job.release)
    target = folder.read(environment.site_packages)
    made = plan.make(patches, target.files, version=job.release)
    # The CPU build must hold the very files of the release that is spoken of.
    if made.drifted() or made.release != job.release:
        raise Drifted(f"{job.release}: the files of its CPU build are not those of the release")
    return engine.run_tests(
        environment,
        engine.patched_tree(environment, made.after, cache.folder()),
        series.root / "tests",
        [reproducer.test for reproducer in job.reproducers],
        lift_hybrid=bool(job.reproducers[0].lift),
        timeout=TIMEOUT,
    )


def _side(reproducer: Reproducer, patches: Sequence[Patch], report: engine.Report) -> Side:
    result, detail = judge(report, reproducer)
    return Side(
        result=result,
        patches=tuple(patch.slug for patch in patches),
        seconds=round(report.seconds, 1),
        detail=detail,
        versions=report.versions,
        lifted=report.lifted,
        output="" if result is Result.PASSES else report.output,
    )


def judge(report: engine.Report, reproducer: Reproducer) -> tuple[Result, str]:
    """What a run says of its reproducer, and one line on why."""
    tests = report.of(reproducer.test)
    if report.timed_out:
        return Result.DID_NOT_RUN, "did not end in time"
    if not tests:
        return Result.DID_NOT_RUN, f"no test of that name (pytest: {report.returncode})"
    if reproducer.lift and reproducer.lift not in report.lifted:
        return Result.DID_NOT_RUN, f"there was no refusal of {reproducer.lift} to lift"
    if all(test.outcome == "passed" for test in tests):
        if report.returncode not in (0, 1):
            return Result.DID_NOT_RUN, f"pytest ended with {report.returncode}"
        return Result.PASSES, ""
    for test in tests:
        if test.outcome in ("skipped", "unfinished"):
            return Result.DID_NOT_RUN, test.reason or test.outcome
    failures = [test.failure for test in tests if test.failure is not None]
    if len(failures) < len(tests):
        return Result.FAILS_OTHERWISE, "part of it passes"
    for failure in failures:
        last = failure.frames[-1] if failure.frames else engine.Frame("", 0, "", "")
        seen = f"{last.file}:{last.line}: {last.source}: {failure.type}: {failure.message}"
        if not declared(failure, reproducer.failure):
            return Result.FAILS_OTHERWISE, " ".join(seen.split())
    if report.returncode != 1:
        return Result.DID_NOT_RUN, f"pytest ended with {report.returncode}"
    return Result.FAILS, " ".join(seen.split())


def declared(seen: engine.Failure, expected: Failure) -> bool:
    """Whether a failure is the one that a header declares."""
    if not seen.frames or not f"/{seen.frames[-1].file}".endswith(f"/{expected.file}"):
        return False
    return expected.message in seen.message or expected.message in seen.frames[-1].source


def write(cells: Sequence[Cell], into: Path) -> Path:
    """Keep the cells in `verify.json` of the folder `into`, beside those of other reproducers."""
    into.mkdir(parents=True, exist_ok=True)
    path = into / "verify.json"
    kept = {_key(cell): cell for cell in _read(path)} | {_key(cell): cell for cell in cells}
    ordered = sorted(kept.values(), key=lambda cell: Version(cell.release))
    path.write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n")
    return path


def _key(cell: Cell) -> tuple[str, str, str]:
    return cell.release, cell.patch, cell.reproducer


def _read(path: Path) -> list[Cell]:
    """The cells kept there; none when there is no such file, or one of another form."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Cell])
    except (FileNotFoundError, msgspec.DecodeError, msgspec.ValidationError):
        return []
