"""What the author of a patch would submit to vLLM: the commits, and the text of the pull request.

The text says what the reproducers printed without and with the patch, on the real engine and in
this very run. Nothing is written unless they fail as declared without it and pass with it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from mrv2_fixes import known, series, verify
from mrv2_fixes.deliver import artifacts, branch, commits
from mrv2_fixes.errors import NEEDED, Mrv2Error, WrongCall
from mrv2_fixes.plan import Plan, State
from mrv2_fixes.series import Patch
from mrv2_fixes.targets import Target
from mrv2_fixes.targets.clone import Clone
from mrv2_fixes.verify import Cell

TEXT = "pull-request.md"
# What pytest ends with when all passed.
PASSED = re.compile(r"\d+ passed\b.* in [\d.]+s\b.*")
# Where pytest shows the objects that an assertion is about, with their addresses.
OBJECTS = re.compile(r"^E +\+ .*\n?", re.MULTILINE)
ASSISTANCE = "AI assistance"
CHECKLIST = """\
- [x] What is wrong, where it shows, and what changes
- [x] The command that shows it
- [x] What that printed, without the change and with it
- [ ] Open issues and pull requests were searched for the same
- [ ] Documentation and release notes need nothing, or have it\
"""


class NotProven(Mrv2Error):
    """The reproducers did not show what the text would say."""

    exit_status = NEEDED


def submittable(slug: str) -> Patch:
    """The patch to submit. Raises WrongCall for one that is unknown or that vLLM has taken."""
    found = series.load().patch(slug)
    since = found.header.applied_upstream
    if since:
        raise WrongCall(f"{slug}: nothing to submit: vLLM has it from {since} on")
    return found


def build(
    patch: Patch, plan: Plan, target: Target, output: Path, progress: Callable[[str], None]
) -> artifacts.Built:
    """Write bundle, patch file and text into `output/pull-request-<slug>/`: whole or not at all.

    plan: of the patch and what it requires, for `target`. The reproducers are run on the release
    that `plan` is for where the patch is proven on that, else on the newest that it is proven on.
    Raises WrongCall when the target has the fix or no such code, or something else than an earlier
    build stands there; NotProven; Drifted when a file to add is in a clone with other content; and
    what `verify.run` and git raise.
    """
    state = next(step.state for step in plan.steps if step.patch.slug == patch.slug)
    if state is not State.NEEDED:
        raise WrongCall(f"{target.where}: nothing to submit: {patch.slug} {state.value}")
    steps = plan.needed()
    if isinstance(target, Clone):
        branch.check_added(target, steps)
    who = commits.identity(Path.cwd())
    final = output.resolve() / f"pull-request-{patch.slug}"
    with artifacts.replacing(final) as out:
        cells = _cells(patch, plan.release, progress)
        artifacts.write_commits(out, commits.base_name(plan, target), patch.slug, plan, who)
        subjects = [step.patch.header.title for step in steps]
        (out / TEXT).write_text(text(patch, subjects, base(plan, target), cells))
    progress(f'{TEXT}: the line "{ASSISTANCE}" is left for its author to complete')
    return artifacts.Built(tuple(sorted(final.iterdir())), "" if who.known else commits.UNSIGNED)


def _cells(patch: Patch, release: str | None, progress: Callable[[str], None]) -> list[Cell]:
    """What the reproducers come to. Raises NotProven unless each proves the patch."""
    proven_on = [one for one in known.releases() if verify.jobs([patch], [one])]
    if not proven_on:
        raise NotProven(f"{patch.slug}: no release has a reproducer of it: nothing is written")
    chosen = release if release in proven_on else proven_on[-1]
    cells = verify.run(verify.jobs([patch], [chosen]), series.load(), progress)
    for cell in cells:
        if not cell.proven:
            results = f"{cell.without.value} without, {cell.with_.value} with"
            details = " ".join(filter(None, (side.detail for side in cell.sides)))
            raise NotProven(
                f"{patch.slug} on {chosen}: not proven, so nothing is written: "
                f"{cell.reproducer} {results}: {details}"
            )
    return cells


def base(plan: Plan, target: Target) -> str:
    """What the branch is on, in words: "vLLM 0.33.0" for that release as published."""
    if isinstance(target, Clone):
        return f"commit {target.commit[:12]}"
    if plan.release is None:
        return "a vLLM that is no published release"
    return f"vLLM {plan.release}" if target.kind == "release" else f"files of vLLM {plan.release}"


def text(patch: Patch, subjects: Sequence[str], base: str, cells: Sequence[Cell]) -> str:
    """The pull request: its title, an empty line, and its description in Markdown.

    subjects: of the branch's commits, oldest first. base: what the branch is on, from `base`.
    cells: of one release, all proven.
    Raises NotProven when it is not known what was printed.
    """
    header = patch.header
    purpose = [_unwrapped(header.description)]
    if header.origin:
        purpose.append(f"Related: {header.origin}")
    if header.differs_from_upstream:
        purpose.append(f"Differs from that: {_unwrapped(header.differs_from_upstream)}")
    if len(subjects) > 1:
        purpose.append("The change needs those before it:")
        purpose.append("\n".join(f"{n}. {subject}" for n, subject in enumerate(subjects, 1)))
    without, with_ = zip(*(cell.sides for cell in cells), strict=True)
    release = cells[0].release
    published = f"vLLM {release} as published"
    inside = ", ".join(dict.fromkeys(slug for side in without for slug in side.patches))
    lifted = ", ".join(dict.fromkeys(name for side in without for name in side.lifted))
    published += f" with {inside}" if inside else ""
    published += f", its refusal of {lifted} at configuration lifted" if lifted else ""
    versions = ", ".join(f"{name} {number}" for name, number in without[0].versions.items())
    not_run = "anything on a GPU"
    if base != f"vLLM {release}":
        not_run = f"the base of the branch, {base}; {not_run}"
    sections = {
        "Purpose": purpose,
        "Test Plan": [
            "Its tests are in the branch. Without the change (the tests alone) and with it:",
            _fenced("bash", _command(cell.reproducer for cell in cells)),
        ],
        "Test Result": [
            f"{published}, without the change:",
            _fenced("text", _printed(OBJECTS.sub("", side.output) for side in without)),
            "With the change:",
            _fenced("text", _printed(_passed(side.output) for side in with_)),
            f"Run on {cells[0].date[:10]} on a CPU, with vLLM's build for it, Triton's "
            f"interpreter and no conftest: {versions}.",
            f"Not run: {not_run}.",
        ],
        "Checklist": [
            CHECKLIST,
            f"{ASSISTANCE}: **to be completed by the author: whether tools helped, and which**",
        ],
    }
    parts = [header.title]
    for name, paragraphs in sections.items():
        parts += [f"## {name}", *paragraphs]
    return "\n\n".join(parts) + "\n"


def _unwrapped(prose: str) -> str:
    """A paragraph a line, since GitHub shows the end of each; what is indented stays as it is."""
    paragraphs = prose.strip("\n").split("\n\n")
    return "\n\n".join(
        one if one.startswith("    ") else " ".join(one.split()) for one in paragraphs
    )


def _command(tests: Iterable[str]) -> str:
    return " \\\n  ".join(["pytest", *(shlex.quote(test) for test in dict.fromkeys(tests))])


def _passed(output: str) -> str:
    return output if PASSED.fullmatch(output) else ""


def _printed(outputs: Iterable[str]) -> str:
    """What was printed, once for those that ran together. Raises NotProven when one is empty."""
    different = [output.strip("\n") for output in dict.fromkeys(outputs)]
    if not all(different):
        raise NotProven("what pytest printed of a run is not there, so nothing is written")
    return "\n\n".join(different)


def _fenced(language: str, content: str) -> str:
    return f"```{language}\n{content}\n```"
