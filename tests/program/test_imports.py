"""What is imported for what: reading knows nothing of writing, a serving process of neither."""

from __future__ import annotations

import subprocess
import sys

import pytest

SLOW = {"libcst", "mrv2_fixes.edit"}
WRITING = "mrv2_fixes.deliver"
UNUSED = [
    ("mrv2_fixes.plugin.running", {*SLOW, WRITING, "click", "mrv2_fixes.printing"}),
    ("mrv2_fixes.targets.folder", {*SLOW, WRITING, "click", "mrv2_fixes.plan"}),
    ("mrv2_fixes.cli", {*SLOW, WRITING}),
    # As slow to import as all the rest of LibCST.
    ("mrv2_fixes.edit", {"libcst.matchers"}),
    ("mrv2_fixes.deliver.in_place", {*SLOW, "click", "mrv2_fixes.printing"}),
]


@pytest.mark.parametrize(("module", "unused"), UNUSED)
def test_a_module_imports_nothing_that_it_has_no_use_for(module: str, unused: set[str]) -> None:
    script = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, stdout=subprocess.PIPE, text=True
    )
    assert not unused & set(done.stdout.split())
