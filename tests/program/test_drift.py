"""Releases that somebody has changed: the fix goes in exactly once, or the place is named."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pytest

from mrv2_fixes import plan, series
from mrv2_fixes.plan import State
from mrv2_fixes.targets import folder

from ..conftest import Source

pytestmark = pytest.mark.releases

HYBRID = "vllm/v1/worker/gpu/model_states/mamba_hybrid.py"
DEFAULT = "vllm/v1/worker/gpu/model_states/default.py"
EAGLE = "vllm/v1/worker/gpu/spec_decode/eagle/speculator.py"
BATCH, FORWARD, GATE = (patch.slug for patch in series.load().core)

Change = Callable[[str], str]


def sub(pattern: str, replacement: str, count: int = 1) -> Change:
    """A change by regular expression that must take place `count` times."""

    def change(text: str) -> str:
        changed, times = re.subn(pattern, replacement, text, flags=re.MULTILINE)
        assert times == count, f"{pattern} stands there {times} times"
        return changed

    return change


def planned(files: Mapping[str, bytes]) -> dict[str, plan.Step]:
    return {step.patch.slug: step for step in plan.make(series.load().core, files).steps}


# Why it is there; file; change; the patch concerned; what its drift must name.
DRIFTS = [
    ("does not parse", HYBRID, sub("^class MambaHybridModelState", "class class"), FORWARD,
     "does not parse"),
    ("method missing", HYBRID, sub("def prepare_attn", "def prepare_attention"), FORWARD,
     "method prepare_attn in the class itself; found it inherited from DefaultModelState"),
    ("method there twice", HYBRID,
     sub(r"^    def postprocess_state\(",
         "    def prepare_attn(self): ...\n\n    def postprocess_state("),
     FORWARD, "one method prepare_attn; found 2"),
    ("class renamed", HYBRID, sub("^class MambaHybridModelState", "class HybridModelState"),
     FORWARD, "no such class"),
    ("class there twice", HYBRID,
     lambda text: text + "\n\nclass MambaHybridModelState: ...\n", FORWARD, "one class"),
    ("method moved to a base class", HYBRID,
     sub(r"^class MambaHybridModelState\(DefaultModelState\):",
         "class MambaHybridModelState(Base):\n    pass\n\n\nclass Base(DefaultModelState):"),
     FORWARD, "it inherited from Base"),
    ("call missing", HYBRID, sub(r"return build_attn_metadata\(", "return make_metadata("), FORWARD,
     "one call of build_attn_metadata; found 0"),
    ("import aliased", HYBRID, sub(r"return build_attn_metadata\(", "return bam("), FORWARD,
     "one call of build_attn_metadata; found 0"),
    ("call there twice", HYBRID,
     sub(r"^        return build_attn_metadata\(",
         "        build_attn_metadata(max_seq_len=1)\n        return build_attn_metadata("),
     FORWARD, "one call of build_attn_metadata; found 2"),
    ("keyword with another value", HYBRID,
     sub(r"^            max_seq_len=self.max_model_len,$",
         "            max_seq_len=self.max_model_len,\n"
         "            seq_lens_cpu_upper_bound=None,"),
     FORWARD, "seq_lens_cpu_upper_bound=None"),
    ("keywords in a dictionary", HYBRID,
     sub(r"^            max_seq_len=self.max_model_len,$", "            **lengths,"),
     FORWARD, "starred arguments"),
    ("neighbour gone", HYBRID, sub(r"^            max_seq_len=self.max_model_len,\n", ""), FORWARD,
     "keyword max_seq_len"),
    ("maximum of something else", HYBRID,
     sub("max_seq_len=self.max_model_len", "max_seq_len=self.max_num_tokens"), BATCH,
     "max_seq_len=self.max_num_tokens"),
    ("half-made fix", DEFAULT,
     sub(r"int\((seq_lens_cpu_upper_bound\[:num_reqs\].max\(\).item\(\))\)", r"\1"), BATCH,
     "a half-made fix"),
    ("one draft place made", EAGLE,
     sub("max_seq_len=self.max_model_len", "max_seq_len=self.draft_max_seq_len"),
     BATCH, "a half-made fix"),
    ("draft length under another name", EAGLE,
     sub(r"^(        )max_query_len = input_batch.*$",
         r"\g<0>\n\1self.draft_max_seq_len = self.max_num_tokens"), BATCH,
     "self.draft_max_seq_len"),
    ("anchor in a branch", EAGLE,
     sub(r"^        max_query_len = input_batch",
         "        if True:\n            max_query_len = input_batch"),
     BATCH, "one assignment to max_query_len; found 0"),
    ("condition changed", HYBRID, sub("if not for_capture:", "if not for_capture and self.on:"),
     GATE, "if not for_capture and self.on"),
    ("condition nested", HYBRID,
     sub(r"^        if not for_capture:",
         "        if True:\n          if not for_capture:\n            pass\n        if self.on:"),
     GATE, "if self.on"),
    ("condition gone", HYBRID, sub("num_accepted_tokens = self.num_acc", "accepted = self.num_acc"),
     GATE, "one if that assigns num_accepted_tokens; found 0"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("why", "file", "change", "slug", "names"), DRIFTS, ids=[d[0] for d in DRIFTS]
)
def test_drift_names_the_place_and_changes_nothing_for_it(
    published: Source, why: str, file: str, change: Change, slug: str, names: str
) -> None:
    files = dict(folder.read(published("0.22.1")).files)
    files[file] = change(files[file].decode()).encode()
    step = planned(files)[slug]
    assert step.state is State.DRIFTED, why
    assert file in step.detail
    assert names in step.detail
    assert not step.files


# What a fork may well have done; the fix still goes in once, and nothing else changes.
KEPT = [
    ("CRLF", lambda text: text.replace("\n", "\r\n")),
    ("byte order mark", lambda text: "\ufeff" + text),
    ("tabs", lambda text: re.sub(r"^( {4})+", lambda m: "\t" * (len(m[0]) // 4), text, flags=re.M)),
    ("no last newline", lambda text: text.rstrip("\n")),
    ("form feed", lambda text: text.replace("\n\n\nclass ", "\n\n\f\nclass ", 1)),
    ("arguments in another order", sub(
        r"^( +max_seq_len=self.max_model_len,\n)( +block_tables=block_tables,\n)", r"\2\1")),
    ("comment at the neighbour", sub(
        r"^            seq_lens=input_batch.seq_lens,$",
        "            seq_lens=input_batch.seq_lens,  # the lengths\n            # and more")),
    ("another method calls it too", sub(
        r"^    def postprocess_state\(",
        "    def other(self):\n        return build_attn_metadata(max_seq_len=self.max_len)\n\n"
        "    def postprocess_state(")),
    ("length named first", sub(
        r"^        return build_attn_metadata\(",
        "        longest = self.max_model_len\n        return build_attn_metadata(")),
]  # fmt: skip


@pytest.mark.parametrize(("why", "change"), KEPT, ids=[kept[0] for kept in KEPT])
def test_what_a_fork_may_do_is_kept_to_the_byte(
    published: Source, why: str, change: Change
) -> None:
    files = dict(folder.read(published("0.22.1")).files)
    files[HYBRID] = change(files[HYBRID].decode()).encode()
    made = plan.make(series.load().core, files)
    assert [step.state for step in made.steps] == [State.NEEDED] * 3, why
    text = made.after[HYBRID]
    assert text.count(b"seq_lens_cpu_upper_bound=input_batch.seq_lens_cpu_upper_bound") == 1
    assert text.count(b"self.vllm_config.num_speculative_tokens > 0") == 1
    assert made.release is None
    before, after = files[HYBRID].splitlines(True), text.splitlines(True)
    new = [line for line in after if line not in before]
    assert len(new) == 7, new
    assert [line for line in after if line in before] == [line for line in before if line in after]
    end = b"\r\n" if why == "CRLF" else b"\n"
    assert all(line.endswith(end) for line in new)
    assert not plan.make(series.load().core, {**files, **made.after}).after


def test_a_file_that_moved_is_not_taken_for_fixed(published: Source) -> None:
    files = dict(folder.read(published("0.24.0")).files)
    files["vllm/v1/worker/gpu/model_states/hybrid.py"] = files.pop(HYBRID)
    step = planned(files)[FORWARD]
    assert step.state is State.DRIFTED
    assert "the class in vllm/v1/worker/gpu/model_states/hybrid.py" in step.detail


def test_a_drift_leaves_the_other_patches_their_state(published: Source) -> None:
    files = dict(folder.read(published("0.22.1")).files)
    files[EAGLE] = files[EAGLE].replace(b"def propose(", b"def proposes(")
    steps = planned(files)
    assert [step.state for step in steps.values()] == [State.DRIFTED, State.NEEDED, State.NEEDED]


def test_a_value_counts_not_the_name_that_it_goes_by(published: Source) -> None:
    """A fork that made the fix by way of a local variable has the fix."""
    files = dict(folder.read(published("0.24.0")).files)
    text = files[HYBRID].decode()
    text = sub(
        r"^            max_seq_len=max_seq_len,$",
        "            seq_lens_cpu_upper_bound=bound,\n            max_seq_len=max_seq_len,",
    )(text)
    text = sub(r"^(        )is_prefilling = torch", r"\1bound = seq_lens_cpu_upper_bound\n\g<0>")(
        text
    )
    files[HYBRID] = text.encode()
    assert planned(files)[FORWARD].state is State.UPSTREAM
