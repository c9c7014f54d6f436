"""Proof: for each patch and release, the reproducer fails without the patch and passes with it.

Without: the release as published, with the patches that the patch requires. With: and with the
patch. Both on the real engine. Only a failure as the header declares it, and then a pass, is proof.
What runs on the same vLLM runs in one process: importing vLLM is half of the time.
"""

from __future__ import annotations

import datetime
import enum
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import msgspec

from mrv2_fixes import cache, engine, known, plan
from mrv2_fixes.errors import Drifted, TargetUnusable
from mrv2_fixes.plan import State
from mrv2_fixes.series import Failure, Patch, Reproducer, Series
from mrv2_fixes.targets import folder

# Seconds for the tests of one job; the slowest take a quarter of it on two slow cores.
TIMEOUT = 400.0


class Result(str, enum.Enum):
    """What one side of a cell came to."""

    PASSES = "passes"
    FAILS = "fails as declared"
    FAILS_OTHERWISE = "fails in another way"
    DID_NOT_RUN = "did not run"


class Side(msgspec.Struct, frozen=True):
    """A reproducer on one vLLM.

    patches: the slugs that were in. seconds: of its tests; the first of a process imports vLLM
    besides. detail: what was seen, in one line. lifted: refusals at configuration that were lifted
    for it. output: what pytest said: the failures, or its last line; all of its end where it did
    not run.
    """

    result: Result
    patches: tuple[str, ...]
    seconds: float
    detail: str
    versions: Mapping[str, str]
    lifted: tuple[str, ...]
    output: str


class Cell(msgspec.Struct, frozen=True, rename={"with_": "with"}):
    """One patch on one release, by one reproducer. digest: what `digest` gave when it was run."""

    patch: str
    release: str
    reproducer: str
    without: Result
    with_: Result
    seconds: float
    date: str
    digest: str
    sides: tuple[Side, Side]

    @property
    def proven(self) -> bool:
        """Whether the fault was there without the patch, and only then."""
        return self.without is Result.FAILS and self.with_ is Result.PASSES


class Job(msgspec.Struct, frozen=True):
    """One patch on one release, by reproducers with the same refusal lifted."""

    patch: Patch
    release: str
    reproducers: tuple[Reproducer, ...]

    def sides(self, series: Series) -> tuple[Vllm, Vllm]:
        """What it runs on: without the patch, and with it."""
        states = known.releases()[self.release].states
        selected = [patch.slug for patch in series.select([self.patch.slug])]
        # what the release has already is not put in, and makes no other vLLM of it
        chosen = tuple(slug for slug in selected if states.get(slug) == State.NEEDED.value)
        required = tuple(slug for slug in chosen if slug != self.patch.slug)
        lift = self.reproducers[0].lift
        return Vllm(self.release, required, lift), Vllm(self.release, chosen, lift)


class Vllm(msgspec.Struct, frozen=True):
    """What a process runs on: a release, the slugs that are in, and the refusal lifted or empty."""

    release: str
    patches: tuple[str, ...]
    lift: str

    def __str__(self) -> str:
        lifted = f", {self.lift} let through" if self.lift else ""
        return f"{self.release} {' + '.join(self.patches) or 'as published'}{lifted}"


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
    """Run every job, `workers` processes at a time, and return its cells in the order of `wanted`.

    Raises EngineError when an environment cannot be made, Drifted when a patch does not fit.
    """
    for release in dict.fromkeys(job.release for job in wanted):
        engine.environment(release, progress=progress)
    tests: dict[Vllm, list[str]] = {}
    for job in wanted:
        for vllm in job.sides(series):
            tests.setdefault(vllm, []).extend(one.test for one in job.reproducers)
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    # Of what the runs begin with: what is changed while they run is not what they prove.
    digests = {job.patch.slug: digest(job.patch, series) for job in wanted}
    progress(f"{len(tests)} runs of an engine, {workers} at a time")
    reports: dict[Vllm, engine.Report] = {}
    with ThreadPoolExecutor(workers) as pool:
        # the longest first, so that none is left alone at the end
        ordered = sorted(tests, key=lambda vllm: -len(tests[vllm]))
        running = {pool.submit(_run, vllm, tests[vllm], series): vllm for vllm in ordered}
        try:
            for future in as_completed(running):
                vllm, report = running[future], future.result()
                reports[vllm] = report
                progress(f"{len(reports)}/{len(tests)} {vllm}: {_outcomes(report)}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            engine.stop()
            raise
    return [
        _cell(job, reproducer, job.sides(series), reports, started, digests[job.patch.slug])
        for job in wanted
        for reproducer in job.reproducers
    ]


def digest(patch: Patch, series: Series) -> str:
    """SHA-256 of what a proof of `patch` is about: what it and those that it requires change, on
    which releases, by which reproducers. What is only told about them may be put in other words.
    """
    of = hashlib.sha256()
    for one in series.select([patch.slug]):
        header = one.header
        of.update(msgspec.json.encode((header.affects, header.touches, header.reproducers)))
        of.update((one.folder / "edit.py").read_bytes() + b"\0")
        for path, content in sorted(one.added().items()):
            of.update(path.encode() + b"\0" + content + b"\0")
    return of.hexdigest()


def _run(vllm: Vllm, tests: Sequence[str], series: Series) -> engine.Report:
    environment = engine.environment(vllm.release)
    target = folder.read(environment.site_packages)
    patches = [patch for patch in series.patches if patch.slug in vllm.patches]
    made = plan.make(patches, target.files, version=vllm.release)
    # The CPU build must hold the very files of the release that is spoken of.
    if made.drifted() or made.release != vllm.release:
        raise Drifted(f"{vllm.release}: the files of its CPU build are not those of the release")
    return engine.run_tests(
        environment,
        engine.patched_tree(environment, made.after, cache.folder()),
        series.root / "tests",
        tests,
        lift_hybrid=bool(vllm.lift),
        timeout=TIMEOUT * len(tests),
    )


def _outcomes(report: engine.Report) -> str:
    """What the tests of a run came to, in a few words."""
    counts = Counter(test.outcome for test in report.tests)
    said = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    late = ", and did not end in time" if report.timed_out else ""
    return f"{said or 'no test ran'}{late} ({report.seconds:.0f} s)"


def _cell(
    job: Job,
    reproducer: Reproducer,
    sides: tuple[Vllm, Vllm],
    reports: Mapping[Vllm, engine.Report],
    date: str,
    digest: str,
) -> Cell:
    without, with_ = (_side(reproducer, vllm, reports[vllm]) for vllm in sides)
    return Cell(
        patch=job.patch.slug,
        release=job.release,
        reproducer=reproducer.test,
        without=without.result,
        with_=with_.result,
        seconds=round(without.seconds + with_.seconds, 1),
        date=date,
        digest=digest,
        sides=(without, with_),
    )


def _side(reproducer: Reproducer, vllm: Vllm, report: engine.Report) -> Side:
    result, detail = judge(report, reproducer)
    tests = report.of(reproducer.test)
    if result is Result.PASSES:
        output = report.output.rpartition("\n")[2]
    elif result is Result.DID_NOT_RUN:
        output = report.output
    else:
        output = "\n".join(line for test in tests if test.failure for line in test.failure.tail)
    return Side(
        result=result,
        patches=vllm.patches,
        seconds=round(sum(test.seconds for test in tests), 1),
        detail=detail,
        versions=report.versions,
        lifted=report.lifted,
        output=output,
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
    """Keep the cells in `verify.json` of the folder `into`, beside those of other reproducers.

    Raises what `kept` does.
    """
    into.mkdir(parents=True, exist_ok=True)
    path = into / "verify.json"
    all_of_them = {_key(cell): cell for cell in (*kept(into), *cells)}
    numbers = [*known.releases(), *(cell.release for cell in all_of_them.values())]
    ordered = sorted(all_of_them.values(), key=lambda cell: numbers.index(cell.release))
    # whole or not at all: what is kept took long
    new = into / "verify.json.new"
    new.write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n")
    return new.replace(path)


def _key(cell: Cell) -> tuple[str, str, str]:
    return cell.release, cell.patch, cell.reproducer


def kept(folder: Path) -> list[Cell]:
    """The cells of `verify.json` in a folder; none when there is no such file.

    Raises TargetUnusable when it is of another form.
    """
    path = folder / "verify.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Cell])
    except FileNotFoundError:
        return []
    except msgspec.DecodeError as error:
        fault = f"not what this `mrv2 verify` keeps ({error})"
        raise TargetUnusable(
            f"{path}: {fault}: take it away, and `mrv2 verify` makes it anew"
        ) from error
