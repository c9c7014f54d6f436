"""Runs scenarios on a release's engine, with the check of attention metadata in it and on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from mrv2_fixes import cache, engine, plan, series
from mrv2_fixes.targets import folder
from tests.contract.outcome import Outcome
from tests.contract.scenarios import SCENARIOS

ROOT = series.root()
CHECK = "check-attn-metadata"
TIMEOUT = 120.0
"""Seconds for a scenario; the slowest takes a quarter of it on two slow cores."""


def patches(patched: str) -> tuple[series.Patch, ...]:
    """What is in beside the check: the core, all, or none."""
    every = series.load()
    return {"none": (), "core": every.core, "all": every.patches}[patched]


def applicable(release: str) -> list[str]:
    """The scenarios that boot on a release."""
    return [name for name, scenario in SCENARIOS.items() if release in scenario.boots.releases]


def run(
    release: str,
    patched: str,
    names: Sequence[str],
    *,
    broken: Mapping[str, bytes] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Outcome]:
    """What each scenario showed, in the order of `names`.

    patched: the patches that are in beside the check: "none", "core" or "all".
    broken: files in the place of the release's, by path. The check then raises, since what an
    engine does with metadata that are wrong on purpose is not known.
    Raises EngineError when the process wrote nothing at all, or not about every scenario.
    """
    environment = engine.environment(release, progress=progress)
    tree = engine.patched_tree(
        environment, {**checked(environment, patched), **(broken or {})}, cache.folder()
    )
    with tempfile.TemporaryDirectory() as temporary:
        result, output = Path(temporary) / "outcomes.json", Path(temporary) / "output"
        variables = engine.variables(environment, [tree])
        engine.run_command(
            [
                *(str(environment.python), "-m", "tests.contract.inside.run"),
                *(*(["--raise"] if broken else []), str(result), *names),
            ],
            ROOT,
            variables
            | {
                "VLLM_PLUGINS": "",
                "VLLM_CHECK_ATTN_METADATA": "1",
                # 0.21.0 to 0.22.1 refuse hybrid models, and have all the code that they need.
                "MRV2_ENGINE_LIFT": "hybrid",
            },
            output,
            TIMEOUT * len(names),
        )
        seen = (
            msgspec.json.decode(result.read_bytes(), type=list[Outcome]) if result.exists() else []
        )
        if [outcome.scenario for outcome in seen] != list(names):
            tail = "\n".join(output.read_text(errors="replace").splitlines()[-30:])
            raise engine.EngineError(
                f"{release}: the survey ended after {len(seen)} scenarios\n{tail}"
            )
    return seen


def checked(environment: engine.Environment, patched: str) -> Mapping[str, bytes]:
    """The files that differ from the release's, with patches and the check in."""
    chosen = dict.fromkeys([*patches(patched), series.load().patch(CHECK)])
    files = folder.read(environment.site_packages).files
    made = plan.make(list(chosen), files, version=environment.release)
    made.check(environment.release)
    return made.after
