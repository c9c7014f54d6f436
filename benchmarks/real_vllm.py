"""Runs a module of `benchmarks.inside` on a release's own code, without and with the series."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mrv2_fixes import engine, plan, series
from mrv2_fixes.targets import folder

ROOT = Path(__file__).parents[1]
RELEASES = ("0.22.1", "0.24.0")
NOTES = {"0.22.1": "This release refuses hybrid models on V2; the refusal is lifted here."}
TIMEOUT = 1200.0
"""Seconds for a release; on two idle cores it takes a tenth of it."""


def run(
    release: str,
    module: str,
    *arguments: object,
    environment: engine.Environment | None = None,
    variables: Mapping[str, str] | None = None,
) -> Any:
    """What `benchmarks.inside.MODULE` measured on a release.

    environment, variables: where it runs, if not on the CPU's engine.
    Raises EngineError, with the end of the output, when it did not come to its end.
    """
    environment = environment or engine.environment(release)
    made = planned(environment)
    with tempfile.TemporaryDirectory() as temporary:
        texts, result, output = (Path(temporary) / name for name in ("texts", "result", "output"))
        _write(texts / "again", made.before)
        _write(texts / "with", made.after)
        command = [str(environment.python), "-m", f"benchmarks.inside.{module}", str(texts)]
        status = engine.run_command(
            [*command, str(result), *map(str, arguments)],
            ROOT,
            variables or _on_the_cpu(environment),
            output,
            TIMEOUT,
        )
        if status != 0:
            end = "\n".join(output.read_text(errors="replace").splitlines()[-30:])
            raise engine.EngineError(f"{release}: {module} ended with {status}\n{end}")
        return json.loads(result.read_text())


def planned(environment: engine.Environment) -> plan.Plan:
    """What the core of the series makes of the vLLM of an environment."""
    files = folder.read(environment.site_packages).files
    made = plan.make(series.load().core, files, version=environment.release)
    made.check(environment.release)
    return made


def measured(script: Path) -> list[Path]:
    """The files that a result of `script` speaks of: what measures, and the edits."""
    inside = Path(__file__).with_name("inside")
    edits = [ROOT / "patches" / patch.slug / "edit.py" for patch in series.load().core]
    return [script, Path(__file__), inside, *edits]


def _on_the_cpu(environment: engine.Environment) -> dict[str, str]:
    # Where a release refuses hybrid models, their code is there all the same.
    return engine.variables(environment) | {"VLLM_PLUGINS": "", "MRV2_ENGINE_LIFT": "hybrid"}


def _write(root: Path, files: Mapping[str, bytes]) -> None:
    for path, content in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
