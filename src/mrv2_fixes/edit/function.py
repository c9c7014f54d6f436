"""What an edit can ask of one function at the top level of a module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from mrv2_fixes.edit.drift import Drift
from mrv2_fixes.edit.place import Outcome, Place
from mrv2_fixes.edit.source import DECORATORS, code_of, parameters

if TYPE_CHECKING:
    from mrv2_fixes.edit.vllm import Vllm


class Function:
    """A function, or the absence of one (present False)."""

    def __init__(self, vllm: Vllm, file: str, name: str, *, present: bool) -> None:
        self._vllm = vllm
        self._file = file
        self._name = name
        self._present = present

    def has_parameters(self, *names: str) -> bool:
        """Whether it has parameters of these names, as newer releases tell themselves by."""
        if not self._present:
            return False
        return {*names} <= {*parameters(self._vllm.function_in(self._file, self._name))}

    def fixed_otherwise(self, what: str) -> None:
        """Note that the fix is there in another form, so that nothing is to be changed."""
        self._vllm.places.append(Place(self._file, self._name, what, Outcome.OTHERWISE))

    def expect_parameters(self, *names: str) -> None:
        """It has parameters of these names. Raises Drift otherwise."""
        if not self._present:
            return
        found = parameters(self._vllm.function_in(self._file, self._name))
        missing = [name for name in names if name not in found]
        if missing:
            sought = f"the parameter {', '.join(missing)}"
            raise Drift(self._file, self._name, sought, ", ".join(found) or "none")

    def decorate(self, decorator: str, *, imported_from: str) -> None:
        """`decorator`, which the file imports from that module, is the first that it has, once.

        Raises Drift where it is another thing there, or another decorator may hide it.
        """
        what = f"@{decorator}"
        if not self._present:
            self._vllm.places.append(Place(self._file, self._name, what, Outcome.ABSENT))
            return
        node = self._vllm.function_in(self._file, self._name)
        present = [code_of(one.decorator) for one in node.decorators]
        others = [one for one in present if one != decorator and one not in DECORATORS]
        if others or present.count(decorator) > 1:
            found = ", ".join(f"@{one}" for one in present)
            raise Drift(self._file, self._name, f"no decorator, or {what} once", found)
        if decorator in present:
            self._vllm.expect_import(self._file, decorator, imported_from, ahead_of=node)
            outcome = Outcome.PRESENT
        else:
            self._vllm.import_(self._file, decorator, imported_from, ahead_of=node)
            new = cst.Decorator(cst.Name(decorator))
            changed = node.with_changes(decorators=[new, *node.decorators])
            self._vllm.replace(self._file, None, node, changed)
            outcome = Outcome.CHANGED
        self._vllm.places.append(Place(self._file, self._name, what, outcome))
