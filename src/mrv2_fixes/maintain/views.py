"""Renew `patches/<slug>/<release>.diff`: what each edit makes of each release that it affects.

    python -m mrv2_fixes.maintain.views

A view is made with the patches that the patch requires in, and has no context lines, so that the
repository holds no more of vLLM than the lines that go. `git apply --unidiff-zero` takes it. The
files that the patch adds are not in it: they stand in the series as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from mrv2_fixes import known, plan, printing, series
from mrv2_fixes.maintain import sources
from mrv2_fixes.targets.folder import Files


def view(patch: series.Patch, files: Mapping[str, bytes]) -> str:
    """The context-free diff that `patch` makes of a vLLM's files."""
    steps = plan.make(series.load().select([patch.slug]), files).steps
    before = dict(files) | {k: v for step in steps[:-1] for k, v in step.files.items()}
    return "".join(
        printing.unified(path, before[path], text, context=0)
        for path, text in sorted(steps[-1].files.items())
        if path in before
    )


def main() -> None:
    """Write every view, and take away those that no release calls for."""
    for patch in series.load().patches:
        affected = [number for number in known.releases() if patch.affects(number)]
        for number in affected:
            root = sources.folder(number, lambda line: print(line, file=sys.stderr))
            path = patch.folder / f"{number}.diff"
            path.write_text(view(patch, Files(root)), newline="")
        for path in patch.folder.glob("*.diff"):
            if path.stem not in affected:
                path.unlink()


if __name__ == "__main__":
    main()
