"""What an edit asks of a vLLM, verb by verb: it is changed once, found done, or the place named."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest

from mrv2_fixes.edit import Drift, Outcome, Vllm

GPU = "vllm/v1/worker/gpu/"
SCHEDULER = "vllm/v1/core/scheduler.py"
BASE = """
    import torch

    class Base:
        def __init__(self, config):
            self.rows = config.rows
            self.most = config.most

        @property
        def steps(self):
            return self.config.steps

        def add(self, row, request):
            self.requests = request

        def build(self):
            return make(
                rows=1,
                longest=2,
            )
"""
OWN = """
    import numpy as np
    import torch

    from vllm.v1.worker.gpu.base import Base
    from vllm.v1.worker.zoo import Zebra

    class Own(Base):
        def __init__(self, config):
            super().__init__(config)

            # The base does the same.
            # And says so.
            self.rows = config.rows

            self.counts = torch.ones(1)

        def propose(self, batch):
            rows = batch.rows
            if rows:
                self.prefill(
                    rows=rows,
                    step=0,
                )
            return self.decode(rows)

        def prepare(self, batch):
            names = sorted(batch)
            ids = fetch(names)
            copied = copy(ids)
            return copied, names
"""
SCHEDULE = """
    class Scheduler:
        def __init__(self, config):
            self.recurrent = config.recurrent

        def schedule(self, waiting):
            while waiting:
                computed = waiting.computed
                pad = False
                if (
                    self.drafts > 0
                    and new == 1
                    and (running or not waiting)
                ):
                    new = 1 + self.drafts + computed
                    pad = True
            return pad
"""
PLACES = {GPU + "base.py": BASE, GPU + "own.py": OWN, SCHEDULER: SCHEDULE}
Edit = Callable[[Vllm], None]
Change = tuple[str, str]


def files(*changes: Change) -> dict[str, bytes]:
    """The small vLLM, with each text of `changes`, which stands there once, replaced."""
    texts = {path: textwrap.dedent(text).lstrip("\n") for path, text in PLACES.items()}
    for old, new in changes:
        (path,) = (path for path, text in texts.items() if text.count(old) == 1)
        texts[path] = texts[path].replace(old, new)
    return {path: text.encode() for path, text in texts.items()}


def bound(vllm: Vllm) -> None:
    """An attribute, made, renewed and handed on, wherever these methods stand."""
    own = vllm.class_("own.py", "Own")
    own.method("__init__", shared=True).assign(
        "self.bound", "torch.zeros(\n    self.rows,\n)", after="self.most", comment="Renewed."
    )
    own.method("propose").assign(
        "self.bound", "torch.full(rows, self.steps)", after="rows", ahead_of=["prefill"]
    )
    own.method("build", shared=True).keyword(
        "make", "bound", was=None, now="self.bound", before="longest"
    )


def step(vllm: Vllm) -> None:
    vllm.class_("own.py", "Own").method("propose").keyword(
        "self.prefill", "step", was="0", now="1", nested=True, comment="One longer."
    )


def drop(vllm: Vllm) -> None:
    own = vllm.class_("own.py", "Own")
    own.method("__init__", inherited=True).drop("self.rows", "config.rows")


ORDER = """\
# By what they are.
order = np.argsort(ids)
names = [names[i] for i in order]
ids = ids[order]
"""


def order(vllm: Vllm) -> None:
    own = vllm.class_("own.py", "Own")
    own.method("prepare").statements(ORDER, after="ids", ahead_of=["copy"])


def reset(vllm: Vllm) -> None:
    own = vllm.class_("own.py", "Own")
    add = own.override(
        "add",
        {"row": "int", "request": "Aardvark"},
        ahead_of="prepare",
        imports={"Aardvark": "vllm.v1.aardvark"},
    )
    add.behind_super(
        "self.counts[row].fill_(1)", also=["self.counts[row] = 1"], comment="Was another's."
    )


def term(vllm: Vllm) -> None:
    scheduler = vllm.class_(SCHEDULER, "Scheduler")
    scheduler.method("schedule").term(
        "(computed > 0 or not self.recurrent)",
        behind="new == 1",
        assigning="pad",
        also=["not self.recurrent"],
    )


def alone(vllm: Vllm) -> None:
    """Only the method that renews it may set it in the class itself."""
    own = vllm.class_("own.py", "Own")
    own.expect_attribute("bound", set_in=["propose"], inherited=False)


# The edit; what stands there, and what has to stand there instead.
CHANGES: list[tuple[Edit, list[Change]]] = [
    (bound, [
        ("        self.most = config.most\n",
         "        self.most = config.most\n"
         "        # Renewed.\n"
         "        self.bound = torch.zeros(\n"
         "            self.rows,\n"
         "        )\n"),
        ("        rows = batch.rows\n",
         "        rows = batch.rows\n        self.bound = torch.full(rows, self.steps)\n"),
        ("            longest=2,\n", "            bound=self.bound,\n            longest=2,\n"),
    ]),
    (step, [
        ("                step=0,\n", "                # One longer.\n                step=1,\n"),
    ]),
    (drop, [
        ("        # The base does the same.\n        # And says so.\n"
         "        self.rows = config.rows\n\n", ""),
    ]),
    (order, [
        ("        ids = fetch(names)\n",
         "        ids = fetch(names)\n" + textwrap.indent(ORDER, "        ")),
    ]),
    (reset, [
        ("from vllm.v1.worker.gpu.base", "from vllm.v1.aardvark import Aardvark\n"
         "from vllm.v1.worker.gpu.base"),
        ("    def prepare(self",
         "    def add(self, row: int, request: Aardvark) -> None:\n"
         "        super().add(row, request)\n"
         "        # Was another's.\n"
         "        self.counts[row].fill_(1)\n\n"
         "    def prepare(self"),
    ]),
    (term, [
        ("                and new == 1\n",
         "                and new == 1\n"
         "                and (computed > 0 or not self.recurrent)\n"),
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "changes"), CHANGES, ids=[edit.__name__ for edit, _ in CHANGES])
def test_what_is_asked_for_is_put_in_once(edit: Edit, changes: list[Change]) -> None:
    before, wanted = files(), files(*changes)
    vllm = Vllm(before)
    edit(vllm)
    assert {**before, **vllm.changed()} == wanted
    assert {place.outcome for place in vllm.places} == {Outcome.CHANGED}

    again = Vllm(wanted)
    edit(again)
    assert not again.changed()
    assert {place.outcome for place in again.places} == {Outcome.PRESENT}


# Forks in which what is asked for would be wrong, or be missed. The edit; what is changed; what the
# drift must name.
DRIFTS: list[tuple[Edit, Change, str]] = [
    (bound, ("import torch\n\nclass", "import torch\ntorch = None\n\nclass"),
     "torch with its value"),
    (bound, ("import torch\n\nclass", "from vllm import torch\n\nclass"), "torch"),
    (bound, ("        self.most = config.most\n", "        self.limit(config)\n"), "self.most"),
    (bound, ("        self.rows = config.rows\n        self.most",
             "        if config.rows:\n            self.rows = config.rows\n        self.most"),
     "self.rows as the class"),
    (bound, ("        super().__init__(config)\n", "        self.config = config\n"),
     "one assignment to self.most"),
    (bound, ("    @property\n", "    @cached\n"), "self.steps set by __init__"),
    (bound, ("    @property\n    def steps", "    @property\n    def pace"),
     "self.steps set by __init__"),
    (bound, ("        self.rows = config.rows\n\n        self.counts",
             "        for self.rows in (1, 2):\n            pass\n\n        self.counts"),
     "self.rows as the class it derives from sets it"),
    (bound, ("            longest=2,\n", "            bound=3,\n            longest=2,\n"),
     "bound=3"),
    (step, ("step=0", "step=2"), "step=2"),
    (step, ("        return self.decode(rows)\n",
            "        self.prefill(step=0)\n        return self.decode(rows)\n"),
     "one call of self.prefill"),
    (step, ("        return self.decode(rows)\n", "        return self.decode(self.prefill)\n"),
     "it by another name"),
    (drop, ("        self.rows = config.rows\n\n        self.counts",
            "        self.rows = config.others\n\n        self.counts"), "another, or several"),
    (drop, ("        self.rows = config.rows\n        self.most",
            "        self.rows = config.others\n        self.most"), "or another value"),
    (drop, ("        super().__init__(config)\n", "        self.config = config\n"),
     "in what it overrides"),
    (order, ("        ids = fetch(names)\n", "        copy(names)\n        ids = fetch(names)\n"),
     "ahead of copy"),
    (order, ("        ids = fetch(names)\n",
             "        ids = fetch(names)\n        order = np.argsort(ids)\n"), "order"),
    (order, ("        ids = fetch(names)\n",
             "        kept = list(names)\n        ids = fetch(names)\n        use(kept)\n"),
     "kept made behind ids"),
    (order, ("        ids = fetch(names)\n",
             "        sums = np.cumsum(names)\n        ends = sums - 1\n"
             "        ids = fetch(names)\n        use(ends)\n"), "ends made behind ids"),
    (order, ("        ids = fetch(names)\n", "        note(names)\n        ids = fetch(names)\n"),
     "note(names) made behind ids"),
    (order, ("        ids = fetch(names)\n",
             "        self.kept = names\n        ids = fetch(names)\n"), "self.kept = names made"),
    (order, ("        ids = fetch(names)\n",
             "        kept[:2] = names\n        ids = fetch(names)\n"), "kept[:2] = names made"),
    (order, ("        ids = fetch(names)\n",
             "        ends = np.cumsum(names, out=kept)\n        ids = fetch(names)\n"),
     "out=kept"),
    (order, ("        names = sorted(batch)\n        ids = fetch(names)\n",
             "        ids = fetch(batch)\n"), "names with its value"),
    (order, ("import numpy as np\n", "from vllm import np\n"), "np"),
    (order, ("        names = sorted(batch)\n",
             "        if batch:\n            names = sorted(batch)\n"), "names"),
    (reset, ("    def add(self, row, request):\n        self.requests",
             "    def add(self, row, request, more):\n        self.requests"), "more"),
    (reset, ("    def add(self, row, request):\n        self.requests",
             "    def attach(self, row, request):\n        self.requests"), "add to override"),
    (reset, ("        self.counts = torch.ones(1)\n", "        self.makes()\n"),
     "self.counts set by __init__"),
    (reset, ("    def prepare(self", "    def add(self, row, request):\n"
             "        self.requests = request\n\n    def prepare(self"), "super().add"),
    (reset, ("    def prepare(self", "    def add(self, row, request):\n"
             "        super().add(row, request)\n        if row:\n            return\n"
             "        self.counts[row].fill_(1)\n\n    def prepare(self"), "a way past it"),
    (reset, ("    def prepare(self", "    def add(self, row, request):\n        if row:\n"
             "            return\n        super().add(row, request)\n\n    def prepare(self"),
     "fill_(1) always; found a way past it"),
    (reset, ("    def prepare(self", "    def add(self, row, request):\n"
             "        super().add(row, request)\n        self.counts[row].fill_(1)\n"
             "        self.counts[row].fill_(2)\n\n    def prepare(self"), "fill_(2)"),
    (reset, ("    def prepare(self", "    def add(self, row, request):\n"
             "        super().add(row, request)\n        if row:\n"
             "            self.counts[0] = 1\n\n    def prepare(self"), "self.counts[0] = 1"),
    (reset, ("    def prepare(self", "    def add(self, row, request):\n"
             "        super().add(row, request)\n        counts = self.counts\n"
             "        counts[row] = 2\n\n    def prepare(self"), "counts = self.counts"),
    (alone, ("        self.counts = torch.ones(1)\n", "        self.bound = None\n"),
     "self.bound set in propose alone; found it set in __init__"),
    (term, ("            computed = waiting.computed\n",
            "            computed = waiting.computed\n            self.recurrent = False\n"),
     "self.recurrent as __init__ sets it"),
    (term, ("                and new == 1\n", "                and new == 2\n"), "found 0"),
    (term, ("                and new == 1\n", "                or new == 1\n"), "found 0"),
    (term, ("                self.drafts > 0\n                and new == 1\n",
            "                new == 1\n"), "it first"),
    (term, ("                pad = True\n",
            "            if running:\n                pad = True\n"), "found 0"),
    (term, (" + computed", ""), "computed used in that if"),
    (term, ("self.recurrent = config.recurrent", "self.kind = config.kind"),
     "self.recurrent set by __init__"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("edit", "change", "names"), DRIFTS, ids=[f"{e.__name__} {n}" for e, _, n in DRIFTS]
)
def test_what_would_be_wrong_there_is_a_drift(edit: Edit, change: Change, names: str) -> None:
    with pytest.raises(Drift) as raised:
        edit(Vllm(files(change)))
    assert names in str(raised.value)


ADD = "    def add(self, row, request):\n        # As ever.\n"
# Forms in which what is asked for may be there; none is made of them.
SERVES: list[tuple[Edit, Change]] = [
    (reset, ("    def prepare(self", f"{ADD}        super().add(row, request)\n"
             "        self.counts[row] = 1\n\n    def prepare(self")),
    (reset, ("    def prepare(self", f"{ADD}        self.counts[row].fill_(1)\n"
             "        super().add(row, request)\n\n    def prepare(self")),
    (reset, ("    def prepare(self", f"{ADD}        super().add(row, request)\n"
             "        self.counts[row] = 1\n        if row:\n            self.counts[row] = 1\n\n"
             "    def prepare(self")),
    (term, ("                self.drafts > 0\n",
            "                not self.recurrent\n                and self.drafts > 0\n")),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "change"), SERVES)
def test_another_form_serves_as_well(edit: Edit, change: Change) -> None:
    vllm = Vllm(files(change))
    edit(vllm)
    assert [place.outcome for place in vllm.places] == [Outcome.PRESENT]
    assert not vllm.changed()


RENAMED = [("pad = False", "more = False"), ("pad = True", "more = True"), ("return pad", "return")]


def test_where_nothing_has_the_name_or_asks_there_is_no_such_if() -> None:
    vllm = Vllm(files(*RENAMED, ("new == 1", "new == 2")))
    term(vllm)
    assert [place.outcome for place in vllm.places] == [Outcome.ABSENT]
    with pytest.raises(Drift, match="one if that asks for new == 1; found 0"):
        term(Vllm(files(*RENAMED)))
    there = "config.recurrent\n"
    elsewhere = there, f"{there}\n    def more(self):\n        pad = True\n"
    with pytest.raises(Drift, match="pad here, or nowhere in the file; found it in another place"):
        term(Vllm(files(*RENAMED, ("new == 1", "new == 2"), elsewhere)))


def test_a_base_class_that_is_not_in_its_file_is_a_drift() -> None:
    there = files(
        ("class Base:", "class Old:"),
        ("        self.counts = torch.ones(1)\n", ""),
        ("    def prepare(self", f"{ADD}        super().add(row, request)\n\n    def prepare(self"),
    )
    with pytest.raises(Drift, match="class Base; found no such class"):
        reset(Vllm(there))


def test_what_a_base_class_sets_is_not_the_class_itself() -> None:
    alone(Vllm(files(("        self.most = config.most\n", "        self.bound = 1\n"))))


def test_a_class_outside_of_the_runner_is_sought_beside_its_file() -> None:
    there = files()
    there["vllm/v1/core/other.py"] = there.pop(SCHEDULER)
    with pytest.raises(Drift, match=r"class in vllm/v1/core/other\.py"):
        term(Vllm(there))
    there["vllm/v1/elsewhere.py"] = there.pop("vllm/v1/core/other.py")
    vllm = Vllm(there)
    term(vllm)
    assert [place.outcome for place in vllm.places] == [Outcome.ABSENT]


def test_newer_releases_tell_themselves_by_parameters_and_keywords() -> None:
    there = files()
    there[GPU + "sort.py"] = b"def sort(tokens, drafts):\n    return tokens\n"
    vllm = Vllm(there)
    assert vllm.function("sort.py", "sort", optional=True).has_parameters("drafts")
    assert not vllm.function("sort.py", "sort", optional=True).has_parameters("drafts", "more")
    assert not vllm.function("own.py", "sort", optional=True).has_parameters("drafts")
    with pytest.raises(Drift, match="function sort"):
        vllm.function("own.py", "sort")
    own = vllm.class_("own.py", "Own")
    assert own.method("propose").has_parameters("batch")
    assert not own.method("propose").has_parameters("batch", "step")
    assert own.method("propose").has_keyword("self.prefill", "step", "0")
    assert not own.method("propose").has_keyword("self.prefill", "step", "1")
    assert not own.method("propose").has_keyword("self.prefill", "drafts", "0")
    none = vllm.class_("none.py", "None_").method("propose")
    assert not none.has_parameters("batch")
    assert not none.has_keyword("self.prefill", "step", "0")
    own.method("propose").fixed_otherwise("steps")
    assert [place.outcome for place in vllm.places] == [Outcome.OTHERWISE]
