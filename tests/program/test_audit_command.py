"""What mrv2 audit tells people and machines, and what somebody has accepted."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from mrv2_fixes import series
from mrv2_fixes.audit import acceptance, audit
from mrv2_fixes.targets import folder

from .conftest import Mrv2, Source
from .small_vllm import BOUND, GIVEN, GPU, IMPORTS, LONG, STATE, of_state

WRONG = of_state("return build_attn_metadata(self.groups, 1, self.max_model_len)")
RIGHT = of_state(f"return build_attn_metadata(self.groups, 1, {LONG}, {GIVEN})")


def written(files: Mapping[str, bytes], root: Path) -> Path:
    """A folder with these files."""
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    return root


def test_findings_are_told_to_people_and_machines_and_in_the_exit_status(
    mrv2: Mrv2, tmp_path: Path
) -> None:
    wrong = written(WRONG, tmp_path / "wrong")
    done = mrv2("audit", wrong)
    assert done.returncode == 1
    assert done.stdout.splitlines()[0].endswith("(folder): 2 findings")
    line = len(textwrap.dedent(IMPORTS).splitlines()) + 3
    assert f"  {line:>4} OneState.prepare_attn: bound not forwarded, certain" in done.stdout
    data = json.loads(mrv2("audit", wrong, "--json").stdout)
    assert [one["key"] for one in data["findings"]] == [
        f"{STATE}: OneState.prepare_attn: bound not forwarded: {BOUND}",
        f"{STATE}: OneState.prepare_attn: max_seq_len over-estimated: max_seq_len",
    ]
    right = written(RIGHT, tmp_path / "right")
    done = mrv2("audit", right)
    assert (done.returncode, done.stdout) == (0, f"{right} (folder): no findings\n")


@pytest.mark.parametrize(
    ("path", "content", "said"),
    [
        (STATE, b"class :", f"{STATE}: does not parse (invalid syntax"),
        (STATE, b"\0", f"{STATE}: does not parse ("),
        (GPU + "attn_utils.py", b"", f"{GPU}: makes no CommonAttentionMetadata: "),
    ],
)
def test_what_cannot_be_audited_is_one_line_and_status_4(
    path: str, content: bytes, said: str, mrv2: Mrv2, tmp_path: Path
) -> None:
    done = mrv2("audit", written({**WRONG, path: content}, tmp_path / "fork"))
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith(f"mrv2: {said}")
    assert done.stderr.count("\n") == 1


ENTRY = """
    [[accept]]
    symbol = "OneState.prepare_attn"
    kind = "{kind}"
    reason = "looked at"
    until = {until}
    {more}
"""
ENTRIES = [
    # kind, until, more, findings that count, what is said of the entry
    ("bound not forwarded", "2999-12-31", "", 1, "accepted until 2999-12-31: looked at"),
    ("bound not forwarded", "2999-12-31", 'field = "positions"', 2, "and not found: take it out"),
    ("bound not forwarded", "2999-12-31", 'file = "vllm/other.py"', 2, "take it out"),
    ("never renewed", "2999-12-31", "", 2, "and not found: take it out"),
    ("bound not forwarded", "2020-02-29", "", 2, "accepted until 2020-02-29, and counts again"),
    ("bound not forwarded", "2999-12-31", 'releases = "<0.30"', 1, "looked at"),
    ("bound not forwarded", "2999-12-31", 'releases = ">=0.30"', 2, ""),
]


@pytest.mark.parametrize(("kind", "until", "more", "count", "said"), ENTRIES)
def test_a_finding_that_is_accepted_does_not_count_while_that_holds(
    kind: str, until: str, more: str, count: int, said: str, mrv2: Mrv2, tmp_path: Path
) -> None:
    metadata = {"vllm-0.24.0.dist-info/METADATA": b"Name: vllm\nVersion: 0.24.0\n\n"}
    fork = written({**WRONG, **metadata}, tmp_path / "fork")
    accept = tmp_path / "accept.toml"
    accept.write_text(textwrap.dedent(ENTRY.format(kind=kind, until=until, more=more)))
    done = mrv2("audit", fork, "--accept", accept)
    assert done.returncode == 1
    told = "1 finding, 1 more accepted" if count == 1 else "2 findings"
    assert done.stdout.splitlines()[0] == f"{fork} (folder): {told}"
    assert said in done.stdout
    findings = json.loads(mrv2("audit", fork, "--accept", accept, "--json").stdout)["findings"]
    assert sum(one["accepted"] is None for one in findings) == count


@pytest.mark.releases
def test_the_example_of_the_readme_accepts_what_it_says(published: Source) -> None:
    readme = (series.root() / "README.md").read_text()
    [example] = re.findall(r"```toml\n(.*?)```", readme, re.DOTALL)
    [entry] = acceptance.parse(example, "README.md")
    findings = audit(folder.read(published("0.24.0")).files)
    accepted = [one.key for one in findings if entry.names(one)]
    assert accepted == [
        f"{GPU}model_states/encoder_decoder.py: {entry.symbol}: field dropped: positions"
    ]
    assert entry.is_for("0.24.0+mrv2.1")
    assert not entry.is_for("0.23.0")


def test_nothing_counts_where_everything_is_accepted(mrv2: Mrv2, tmp_path: Path) -> None:
    fork = written(WRONG, tmp_path / "fork")
    entries = [
        ENTRY.format(kind=one, until="2999-12-31", more="")
        for one in ("bound not forwarded", "max_seq_len over-estimated")
    ]
    (tmp_path / "accept.toml").write_text(textwrap.dedent("".join(entries)))
    done = mrv2("audit", fork, "--accept", tmp_path / "accept.toml")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].endswith("no findings, 2 more accepted")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("accept = 1", "Expected `array`"),
        ("[[accept]", "Expected"),
        (ENTRY.format(kind="wrong", until="2999-12-31", more=""), "Invalid enum value 'wrong'"),
        (ENTRY.format(kind="never renewed", until="soon", more=""), ""),
        (ENTRY.format(kind="never renewed", until="2999-12-31", more="line = 3"), "unknown field"),
        (
            ENTRY.format(kind="never renewed", until="2999-12-31", more='releases = "x"'),
            "specifier",
        ),
    ],
)
def test_a_file_of_what_is_accepted_that_cannot_be_read_is_a_wrong_call(
    text: str | None, said: str, mrv2: Mrv2, tmp_path: Path
) -> None:
    fork = written(WRONG, tmp_path / "fork")
    accept = tmp_path / "accept.toml"
    if text is not None:
        accept.write_text(textwrap.dedent(text))
    done = mrv2("audit", fork, "--accept", accept)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"mrv2: {accept}: ")
    assert said in done.stderr
