"""Releases that somebody has changed: the fix goes in exactly once, or the place is named."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from mrv2_fixes import plan, series
from mrv2_fixes.plan import State
from mrv2_fixes.targets import folder

from .conftest import HYBRID, Source

pytestmark = pytest.mark.releases

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


def changed(root: Path, file: str, change: Change) -> dict[str, bytes]:
    """A release's files, one of them changed."""
    files = dict(folder.read(root).files)
    files[file] = change(files[file].decode()).encode()
    return files


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
    files = changed(published("0.22.1"), file, change)
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
    files = changed(published("0.22.1"), HYBRID, change)
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


NEWER_SPECULATOR = "vllm/v1/worker/gpu/spec_decode/autoregressive/speculator.py"

# Releases whose fix, or whose starting point, somebody has undone out of sight of the one line that
# the edit is about. Why; release; file; change; the patch concerned.
OUT_OF_SIGHT = [
    ("filled in an elif", "0.25.0", HYBRID,
     sub(r"^(        )mamba_attn_metadata = Mamba",
         r"\1if for_capture:\n\1    num_accepted_tokens = self.ones\n\g<0>"), GATE),
    ("not None before", "0.25.0", HYBRID,
     sub("num_accepted_tokens = None$", "num_accepted_tokens = self.ones"), GATE),
    ("the other tensor outside", "0.25.0", HYBRID,
     sub("num_decode_draft_tokens_cpu = None$", "num_decode_draft_tokens_cpu = self.drafts"), GATE),
    ("another tensor handed over", "0.25.0", HYBRID,
     sub("num_accepted_tokens=num_accepted_tokens,", "num_accepted_tokens=self.ones,"), GATE),
    ("an else", "0.22.1", HYBRID,
     sub(r"^(        )mamba_attn_metadata = Mamba",
         r"\1else:\n\1    num_accepted_tokens = self.ones\n\g<0>"), GATE),
    ("parameter overwritten", "0.22.1", HYBRID,
     sub(r"^(        )num_accepted_tokens = None$", r"\1for_capture = False\n\g<0>"), GATE),
    ("split in two", "0.22.1", HYBRID,
     sub(r"^            (num_decode_draft_tokens_cpu = torch)",
         r"        if not for_capture:\n            \1"), GATE),
    ("dead behind a return", "0.25.0", NEWER_SPECULATOR,
     sub(r"^(        )max_seq_len = input_batch", r"\1return None\n\g<0>"), BATCH),
    ("overridden without super", "0.25.0", EAGLE,
     lambda text: text + "\n    def propose(self, input_batch):\n        return None\n", BATCH),
    ("another base in front", "0.25.0", EAGLE,
     sub(r"class EagleSpeculator\(", "from .mixin import Mixin\nclass EagleSpeculator(Mixin, "),
     BATCH),
    ("redefined in a branch", "0.25.0", HYBRID,
     sub(r"^    def postprocess_state\(",
         "    if True:\n        def prepare_attn(self): ...\n\n    def postprocess_state("),
     FORWARD),
    ("redefined by assignment", "0.25.0", HYBRID,
     sub(r"^    def postprocess_state\(",
         "    prepare_attn = None\n\n    def postprocess_state("), FORWARD),
    ("class again in a branch", "0.25.0", HYBRID,
     lambda text: text + "\ntry:\n    class MambaHybridModelState: ...\nfinally: ...\n", FORWARD),
    ("bound to a module", "0.25.0", HYBRID,
     sub(r"^        return build_attn_metadata\(",
         "        import math as seq_lens_cpu_upper_bound\n        return build_attn_metadata("),
     FORWARD),
    ("in an inner function", "0.25.0", HYBRID,
     sub(r"^        return build_attn_metadata\(",
         "        def go(seq_lens_cpu_upper_bound=None): ...\n"
         "        build = build_attn_metadata\n        return build_attn_metadata("), FORWARD),
    ("count overwritten", "0.25.0", NEWER_SPECULATOR,
     sub(r"^(        )max_seq_len = input_batch", r"\1num_reqs = 1\n\g<0>"), BATCH),
    ("parameter renamed", "0.22.1", HYBRID, lambda text: text.replace("input_batch", "batch"),
     FORWARD),
    ("count renamed", "0.22.1", HYBRID, lambda text: re.sub(r"\bnum_reqs\b", "n", text), BATCH),
    ("attribute renamed", "0.22.1", EAGLE,
     lambda text: text.replace("num_speculative_steps", "num_steps"), BATCH),
    ("count assigned too late", "0.22.1", EAGLE,
     sub(r"^(        num_reqs = input_batch.num_reqs\n)(        max_query_len = .*\n)", r"\2\1"),
     BATCH),
    ("fixed at another place", "0.22.1", HYBRID,
     sub("num_accepted_tokens=num_accepted_tokens,",
         "num_accepted_tokens=num_accepted_tokens if self.speculative else None,"), GATE),
    ("twice int", "0.22.1", DEFAULT, sub(r"int\(seq_lens", "int(int(seq_lens"), BATCH),
    ("lone carriage returns", "0.22.1", HYBRID, lambda text: text.replace("\n", "\r"), FORWARD),
    ("newer syntax in the method", "0.22.1", HYBRID,
     sub(r"^(        )num_accepted_tokens = None$", r"\1type X[T] = (\n\g<0>"), GATE),
    ("several statements on a line", "0.22.1", HYBRID,
     sub(r"^(        )num_accepted_tokens = None$", r"\1a = 1; num_accepted_tokens = None"), GATE),
    ("handed over before it is decided", "0.25.0", HYBRID,
     sub(r"^(        num_accepted_tokens = None\n)",
         r"\1        MambaHybridAttnMetadata(is_prefilling=is_prefilling)\n"), GATE),
    ("after the draft steps", "0.25.0", NEWER_SPECULATOR,
     sub(r"^(        )max_seq_len = input_batch",
         r"\1self._multi_step_decode(num_reqs)\n\g<0>"), BATCH),
    ("method deleted", "0.22.1", HYBRID,
     sub(r"^    def postprocess_state\(", r"    del prepare_attn\n\n\g<0>"), GATE),
    ("method decorated", "0.22.1", HYBRID,
     sub(r"^    def prepare_attn\(", r"    @replaced\n\g<0>"), FORWARD),
    ("class decorated", "0.22.1", HYBRID,
     sub("^class MambaHybridModelState", r"@replaced\n\g<0>"), FORWARD),
    ("metaclass", "0.22.1", HYBRID,
     sub(r"\(DefaultModelState\)", "(DefaultModelState, metaclass=Other)"), FORWARD),
    ("method replaced behind the class", "0.22.1", HYBRID,
     lambda text: text + "\n\nMambaHybridModelState.prepare_attn = None\n", FORWARD),
    ("class replaced by a string", "0.22.1", HYBRID,
     lambda text: text + "\n\nglobals()['MambaHybridModelState'] = None\n", FORWARD),
    ("class replaced by a function", "0.22.1", HYBRID,
     lambda text: text + "\n\ndef MambaHybridModelState(*args): ...\n", FORWARD),
    ("everything imported behind the class", "0.22.1", HYBRID,
     lambda text: text + "\n\nfrom vllm.other import *\n", FORWARD),
    ("call bound again", "0.22.1", HYBRID,
     lambda text: text + "\n\nbuild_attn_metadata = None\n", FORWARD),
    ("call bound in the method", "0.22.1", HYBRID,
     sub(r"^        return build_attn_metadata\(",
         r"        from vllm.other import build_attn_metadata\n\g<0>"), FORWARD),
    ("call of a method of that name", "0.22.1", HYBRID,
     sub(r"^        return build_attn_metadata\(", "        return self.build_attn_metadata("),
     FORWARD),
    ("attributes set by strings", "0.22.1", HYBRID,
     sub(r"^(        )super\(\).__init__\(.*$", r"\g<0>\n\1vars(self)['vllm_config'] = 1"),
     GATE),
    ("attributes set by strings in the method", "0.22.1", HYBRID,
     sub(r"^(        )num_accepted_tokens = None$",
         r"\1vars(input_batch)['seq_lens_cpu_upper_bound'] = None\n\g<0>"), FORWARD),
    ("attribute set twice", "0.22.1", HYBRID,
     sub(r"^        super\(\).__init__\(.*$", r"\g<0>\n        self.vllm_config = None"), GATE),
    ("attribute set by the method", "0.23.0", HYBRID,
     sub(r"^(        )num_accepted_tokens = None$", r"\1self.max_model_len = 1\n\g<0>"), BATCH),
    ("attribute set by another name", "0.23.0", HYBRID,
     sub(r"^(        )num_accepted_tokens = None$", r"\1me = self\n\1me.max_model_len = 1\n\g<0>"),
     BATCH),
    ("metadata emptied behind", "0.25.0", HYBRID,
     sub(r"^        return build_attn_metadata\(",
         r"        mamba_attn_metadata.num_accepted_tokens = self.ones\n\g<0>"), GATE),
    ("metadata not handed over", "0.22.1", HYBRID,
     sub("model_specific_attn_metadata=mamba_attn_metadata", "model_specific_attn_metadata=None"),
     GATE),
    ("another min", "0.22.1", EAGLE, sub("^logger = ", r"min = abs\n\g<0>"), BATCH),
    ("another int", "0.22.1", DEFAULT, sub("^class DefaultModelState", r"int = abs\n\n\n\g<0>"),
     BATCH),
    ("draft length set by a third method", "0.25.0", EAGLE,
     lambda text: text + "\n    def other(self):\n        self.draft_max_seq_len = 1\n", BATCH),
    ("draft length set by a string", "0.25.0", NEWER_SPECULATOR,
     sub(r"^(        )self.last_token_indices.zero_\(\)$",
         r"\g<0>\n\1vars(self)['draft_max_seq_len'] = 1"), BATCH),
    ("draft length a property", "0.25.0", EAGLE,
     lambda text: text + "\n    @property\n    def draft_max_seq_len(self):\n        return 1\n",
     BATCH),
    ("attributes that are not what they are set to", "0.25.0", EAGLE,
     lambda text: text + "\n    def __getattribute__(self, name):\n        return 1\n", BATCH),
    ("a base by expression", "0.25.0", EAGLE,
     sub(r"\(AutoRegressiveSpeculator\)", "(chosen(), AutoRegressiveSpeculator)"), BATCH),
    ("a base bound again", "0.25.0", EAGLE,
     sub("^class Eagle", r"AutoRegressiveSpeculator = object\n\n\n\g<0>"), BATCH),
    ("another value filled in the if", "0.22.1", HYBRID,
     sub(r"^(            )num_accepted_tokens = self", r"\1num_reqs = 1\n\g<0>"), GATE),
    ("another tensor filled in the if", "0.22.1", HYBRID,
     sub(r"^(            )num_accepted_tokens = self", r"\1is_prefilling[:1] = True\n\g<0>"), GATE),
    ("a call in the if", "0.22.1", HYBRID,
     sub(r"^(            )num_accepted_tokens = self", r"\1self.count()\n\g<0>"), GATE),
    ("a return in the if", "0.22.1", HYBRID,
     sub(r"^(            )num_accepted_tokens = self", r"\1while self.off:\n\1    return\n\g<0>"),
     GATE),
    ("deep nesting", "0.22.1", HYBRID, lambda text: f"{text}X = {'(' * 3000}1{')' * 3000}\n", GATE),
    ("a long sum", "0.22.1", HYBRID, lambda text: f"{text}X = {'1 + ' * 3000}1\n", GATE),
]  # fmt: skip


@pytest.mark.parametrize(
    ("why", "release", "file", "change", "slug"), OUT_OF_SIGHT, ids=[row[0] for row in OUT_OF_SIGHT]
)
def test_what_is_undone_out_of_sight_is_not_taken_for_fixed_nor_for_fixable(
    published: Source, why: str, release: str, file: str, change: Change, slug: str
) -> None:
    files = changed(published(release), file, change)
    assert planned(files)[slug].state is State.DRIFTED, why


# Layouts that some formatter writes; the fix goes in, and no comment is lost.
LAYOUTS = [
    ("argument over lines", BATCH, HYBRID, sub(
        "max_seq_len=self.max_model_len,", "max_seq_len=self\n            .max_model_len,")),
    ("parentheses with comments", BATCH, HYBRID, sub(
        "max_seq_len=self.max_model_len,",
        "max_seq_len=(  # one\n                self.max_model_len  # two\n            ),")),
    ("call over lines", BATCH, DEFAULT, sub(
        r"int\(seq_lens_cpu_upper_bound\[:num_reqs\].max\(\).item\(\)\)",
        "int(  # one\n                seq_lens_cpu_upper_bound[\n                    :num_reqs\n"
        "                ]\n                .max()\n                .item(),  # two\n"
        "            )")),
    ("no space after if", GATE, HYBRID, sub("if not for_capture:", "if(not for_capture):")),
    ("condition over lines", GATE, HYBRID, sub(
        "if not for_capture:", "if (  # one\n            not for_capture  # two\n        ):")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("why", "slug", "file", "change"), LAYOUTS, ids=[row[0] for row in LAYOUTS]
)
def test_other_layouts_are_changed_and_keep_their_comments(
    published: Source, why: str, slug: str, file: str, change: Change
) -> None:
    files = changed(published("0.22.1"), file, change)
    made = plan.make(series.load().select([slug]), files)
    assert made.steps[-1].state is State.NEEDED, made.steps[-1].detail
    for comment in (b"# one", b"# two"):
        assert made.after[file].count(comment) == files[file].count(comment)
    assert not plan.make(series.load().select([slug]), {**files, **made.after}).after


def test_names_are_not_followed_without_end(published: Source) -> None:
    files = dict(folder.read(published("0.22.1")).files)
    chain = "".join(f"        z{i} = z{i - 1} + z{i - 1}\n" for i in range(1, 30))
    text = sub(
        r"^        return build_attn_metadata\(",
        f"        z0 = 1\n{chain}        return build_attn_metadata(",
    )(files[HYBRID].decode())
    files[HYBRID] = sub("max_seq_len=self.max_model_len,", "max_seq_len=z29,")(text).encode()
    assert planned(files)[BATCH].state is State.DRIFTED
