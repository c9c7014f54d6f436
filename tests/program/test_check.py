"""The check of attention metadata in releases that somebody has changed.

It goes in where all of it is seen to be asked, or the place is named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from mrv2_fixes import plan, series
from mrv2_fixes.plan import State
from mrv2_fixes.targets import folder

from .conftest import Source
from .test_drift import KEPT, Change, changed, sub

pytestmark = pytest.mark.releases

UTILS = "vllm/v1/worker/gpu/attn_utils.py"
ENCODER = "vllm/v1/worker/gpu/model_states/encoder_only.py"
CONTRACT = "vllm.v1.worker.gpu.attn_metadata_contract"
CHECK = "check-attn-metadata"


def checking(files: Mapping[str, bytes]) -> plan.Plan:
    return plan.make([series.load().patch(CHECK)], files)


# Forks in which the check could be missed, or of something else. Why; file; change, to 0.32.0 as
# published; what the drift must name.
UNCHECKED = [
    ("function missing", UTILS, sub("^def build_attn_metadata", "def build_metadata"),
     "function build_attn_metadata; found no such function"),
    ("function there twice", UTILS,
     lambda text: text + "\n\ndef build_attn_metadata(): ...\n", "one function"),
    ("function in a branch", UTILS,
     lambda text: text + "\n\nif True:\n    def build_attn_metadata(): ...\n", "bound again"),
    ("function a class", UTILS,
     lambda text: text + "\n\nclass build_attn_metadata: ...\n", "bound again"),
    ("function bound again", UTILS,
     lambda text: text + "\n\nbuild_attn_metadata = cached(build_attn_metadata)\n", "bound again"),
    ("function by another name", UTILS,
     lambda text: text + "\n\nbuild = build_attn_metadata\n", "bound again"),
    ("function imported again", UTILS,
     lambda text: text + "\n\nfrom vllm.other import *\n", "bound again"),
    ("function moved", UTILS,
     sub("^def build_attn_metadata", "from vllm.other import build_attn_metadata\n\n\ndef build"),
     "bound again"),
    ("function set by a function", UTILS,
     lambda text: text + "\n\ndef other():\n    global build_attn_metadata\n"
     "    build_attn_metadata = None\n", "bound again"),
    ("function set by a string", UTILS,
     lambda text: text + "\n\ndef other():\n    globals()['build_attn_metadata'] = None\n",
     "found globals"),
    ("function set by its module", UTILS,
     lambda text: text + "\n\ndef other(module):\n    module.build_attn_metadata = None\n",
     "found module.build_attn_metadata"),
    ("another decorator", UTILS,
     sub("^def build_attn_metadata", r"@cached\n\g<0>"), "found @cached"),
    ("another decorator below", UTILS,
     sub("^def build_attn_metadata", r"@checked\n@cached\n\g<0>"), "found @checked, @cached"),
    ("decorated twice", UTILS,
     sub("^def build_attn_metadata", r"@checked\n@checked\n\g<0>"), "found @checked, @checked"),
    ("decorated with another thing of that name", UTILS,
     sub("^def build_attn_metadata", r"from vllm.other import checked\n\n\n@checked\n\g<0>"),
     f"checked imported from {CONTRACT}, once"),
    ("decorated, and nothing imported", UTILS,
     sub("^def build_attn_metadata", r"@checked\n\g<0>"),
     f"checked imported from {CONTRACT}, once"),
    ("imported behind", UTILS,
     lambda text: text + f"\n\nfrom {CONTRACT} import checked\n", "imported behind its use"),
    ("imported by another name", UTILS,
     sub("^import torch$", rf"\g<0>\nfrom {CONTRACT} import check_metadata as checked"),
     f"checked imported from {CONTRACT}, once"),
    ("imported for types alone", UTILS,
     sub(r"^if TYPE_CHECKING:$", rf"\g<0>\n    from {CONTRACT} import checked"),
     f"checked imported from {CONTRACT}, once"),
    ("imported, and bound again", UTILS,
     sub("^def build_attn_metadata",
         rf"from {CONTRACT} import checked\n\nchecked = None\n\n\n\g<0>"),
     f"checked imported from {CONTRACT}, once"),
    ("nothing of vLLM imported by name", UTILS,
     lambda text: "import torch\n\n\n" + text[text.index("def build_attn_metadata") :],
     "an import from vllm"),
    ("method missing", ENCODER,
     sub("^    def _build_encoder_attn_metadata", "    def _build_encoder"),
     "method _build_encoder_attn_metadata"),
    ("class in another file", ENCODER,
     lambda text: "from vllm.other import EncoderOnlyModelState\n", "class EncoderOnlyModelState"),
    ("metadata in a branch", ENCODER,
     sub(r"^        common_attn_metadata = Common",
         "        if True:\n         common_attn_metadata = Common"),
     "one assignment to common_attn_metadata; found 0"),
    ("metadata by another name", ENCODER,
     lambda text: re.sub(r"\bcommon_attn_metadata\b(?!=)", "common", text),
     "one assignment to common_attn_metadata; found 0"),
    ("metadata made twice", ENCODER,
     sub(r"^        attn_metadata: dict.*$", r"        common_attn_metadata = None\n\g<0>"),
     "found 2 of them"),
    ("metadata changed afterwards", ENCODER,
     sub(r"^        attn_metadata: dict.*$",
         r"        common_attn_metadata.max_seq_len = 1\n\g<0>"),
     "found common_attn_metadata.max_seq_len set"),
    ("other metadata built", ENCODER,
     sub("common_attn_metadata=common_attn_metadata", "common_attn_metadata=self.other"),
     "common_attn_metadata in builder.build; found another value"),
    ("nothing built", ENCODER, sub(r"builder\.build", "builder.make", 2), "no such call"),
    ("built before", ENCODER,
     sub(r"^        max_query_len = int",
         r"        self.builder.build(common_attn_metadata)\n\g<0>"),
     "ahead of self.builder.build"),
    ("capture told otherwise", ENCODER,
     sub(r"^        max_query_len = int", r"        for_capture = False\n\g<0>"),
     "for_capture with its value"),
    ("groups by another name", ENCODER,
     lambda text: text.replace("self.encoder_attn_groups", "self.groups"),
     "self.encoder_attn_groups set by __init__"),
    ("returned before", ENCODER,
     sub(r"^        max_query_len = int", r"        return {}\n\g<0>"), "a return before it"),
    ("another function of that name", ENCODER,
     sub("^class EncoderOnly", r"def check_metadata(*args): ...\n\n\n\g<0>"),
     f"check_metadata imported from {CONTRACT}, once"),
    ("the name a parameter's", ENCODER,
     sub(r"for_capture: bool$", r"\g<0>, check_metadata: None = None", 1),
     "check_metadata of the module"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("why", "file", "change", "names"), UNCHECKED, ids=[row[0] for row in UNCHECKED]
)
def test_what_could_miss_the_check_is_a_drift(
    published: Source, why: str, file: str, change: Change, names: str
) -> None:
    files = changed(published("0.32.0"), file, change)
    made = checking(files)
    assert [step.state for step in made.steps] == [State.DRIFTED], why
    assert made.steps[0].detail.startswith(f"{file}: ")
    assert names in made.steps[0].detail
    assert not made.after


IMPORT = f"from {CONTRACT} import checked"
# Modules that isort has behind it and before it.
STATES = "from vllm.v1.worker.gpu.model_states.interface import ModelSpecificAttnMetadata"
FIRST = "from vllm.v1.worker.gpu.async_utils import stream"


def with_imports(*lines: str) -> Change:
    """The function alone, below these lines."""
    return lambda text: "\n".join([*lines, "", "", text[text.index("def build_attn_metadata") :]])


# Where the import goes. Why; change; the line before it and the one behind.
IMPORTS = [
    ("as published", lambda text: text, ")", STATES),
    ("behind the last", with_imports("import torch", "", FIRST, ""), FIRST, ""),
    ("first of its kin", with_imports("import torch", "", STATES), "", STATES),
    ("first, above a comment", with_imports("import torch", "", "# note", STATES), "", "# note"),
    ("between, above a comment", with_imports(FIRST, "# note", STATES), FIRST, "# note"),
    ("at a gap", with_imports(FIRST, "", STATES), FIRST, ""),
    ("nothing ahead", with_imports(STATES), None, STATES),
    ("later ones in between", with_imports(FIRST, "import torch", STATES), "import torch", STATES),
    ("another behind", lambda text: f"{with_imports(FIRST)(text)}\n\n{STATES}\n", FIRST, ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("why", "change", "before", "behind"), IMPORTS, ids=[row[0] for row in IMPORTS]
)
def test_the_import_goes_among_its_kin(
    published: Source, why: str, change: Change, before: str | None, behind: str
) -> None:
    files = changed(published("0.32.0"), UTILS, change)
    lines = checking(files).after[UTILS].decode().split("\n")
    at = lines.index(IMPORT)
    assert (lines[at - 1] if at else None, lines[at + 1]) == (before, behind), why
    lines.remove(IMPORT)
    lines.remove("@checked")
    assert "\n".join(lines).encode() == files[UTILS]


@pytest.mark.parametrize(("why", "change"), KEPT[:5], ids=[kept[0] for kept in KEPT[:5]])
@pytest.mark.parametrize("file", [UTILS, ENCODER])
def test_the_check_goes_in_and_every_other_byte_is_kept(
    published: Source, file: str, why: str, change: Change
) -> None:
    files = changed(published("0.32.0"), file, change)
    made = checking(files)
    assert made.steps[0].state is State.NEEDED, made.steps[0].detail
    before, after = files[file].splitlines(True), made.after[file].splitlines(True)
    new = [line for line in after if line not in before]
    assert len(new) == 2, why
    assert [line for line in after if line not in new] == before
    end = b"\r\n" if why == "CRLF" else b"\n"
    assert all(line.endswith(end) for line in new)
    assert not checking({**files, **made.after}).after


STATEMENT = "check_metadata(common_attn_metadata, self.encoder_attn_groups, for_capture)"
CALL = f"^        {re.escape(STATEMENT)}"
# What a fork may have made of the check. Why; file; change to what the edit makes of 0.32.0.
MADE = [
    ("another layout", ENCODER,
     sub(CALL, "        check_metadata(\n            common_attn_metadata,  # all of it\n"
         "            self.encoder_attn_groups, for_capture,\n        )")),
    ("a statement between", ENCODER, sub(CALL, r"        self.device.note()\n\g<0>")),
    ("by a local name", ENCODER,
     sub(CALL, "        groups = self.encoder_attn_groups\n"
         "        check_metadata(common_attn_metadata, groups, for_capture)")),
    ("without gradients", UTILS, sub("^@checked", r"\g<0>\n@torch.no_grad()")),
    ("imported elsewhere at the top", UTILS,
     lambda text: text.replace(f"{IMPORT}\n", "").replace(STATES, f"{STATES}\n{IMPORT}")),
    ("imported with others", UTILS,
     sub(IMPORT, f"from {CONTRACT} import (\n    Breach,\n    checked,\n)")),
]  # fmt: skip
# The same for what is no check any more, and what the drift must name.
UNMADE = [
    ("one of two", UTILS, lambda text: text.replace("@checked\n", "").replace(f"{IMPORT}\n", ""),
     "a half-made fix"),
    ("other metadata", ENCODER, sub(r"check_metadata\(common_attn_metadata", "check_metadata(None"),
     "found check_metadata(None"),
    ("never at capture", ENCODER, sub("encoder_attn_groups, for_capture", "encoder_attn_groups, 0"),
     "found check_metadata("),
    ("in a branch", ENCODER,
     sub(CALL, f"        if for_capture:\n            {STATEMENT}"), "in a branch"),
    ("its value taken", ENCODER,
     sub(CALL, f"        note = {STATEMENT}"), "found check_metadata("),
    ("twice", ENCODER, sub(CALL, r"\g<0>\n\g<0>"), "found 2 of them"),
    ("a way past it", ENCODER,
     sub(CALL, r"        if for_capture:\n            return {}\n\g<0>"), "a way past it"),
    ("behind the builders", ENCODER,
     lambda text: text.replace(f"        {STATEMENT}\n", "").replace(
         "        return attn_metadata\n", f"        {STATEMENT}\n        return attn_metadata\n"),
     "it ahead of builder.build"),
    ("of another module", ENCODER,
     sub(f"from {CONTRACT} import", "from vllm.other import"), "check_metadata imported from"),
]  # fmt: skip


@pytest.mark.parametrize(("why", "file", "change"), MADE, ids=[row[0] for row in MADE])
def test_a_check_that_is_in_is_left_as_it_is(
    published: Source, why: str, file: str, change: Change
) -> None:
    files = dict(folder.read(published("0.32.0")).files)
    files.update(checking(files).after)
    text = files[file].decode()
    files[file] = change(text).encode()
    assert files[file] != text.encode(), why
    made = checking(files)
    assert made.steps[0].state is State.UPSTREAM, made.steps[0].detail


@pytest.mark.parametrize(("why", "file", "change", "names"), UNMADE, ids=[row[0] for row in UNMADE])
def test_a_check_that_is_none_is_not_taken_for_one(
    published: Source, why: str, file: str, change: Change, names: str
) -> None:
    files = dict(folder.read(published("0.32.0")).files)
    files.update(checking(files).after)
    files[file] = change(files[file].decode()).encode()
    step = checking(files).steps[0]
    assert step.state is State.DRIFTED, why
    assert names in step.detail


def test_every_argument_that_the_check_looks_at_is_expected(published: Source) -> None:
    """A fork that renamed one gets a drift, not a check that fails when it is turned on."""
    module = (series.root() / "vllm/v1/worker/gpu/attn_metadata_contract.py").read_text()
    names = set(re.findall(r'\barguments\["(\w+)"\]', module))
    assert len(names) > 10
    for name in names:
        files = dict(folder.read(published("0.32.0")).files)
        files[UTILS] = re.sub(rf"\b{name}\b".encode(), b"other", files[UTILS])
        assert f"the parameter {name};" in checking(files).steps[0].detail
