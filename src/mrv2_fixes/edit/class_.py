"""What an edit can ask of one class at the top level of a module."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from mrv2_fixes.edit.drift import Drift
from mrv2_fixes.edit.method import Method
from mrv2_fixes.edit.source import parameters as parameters_of

if TYPE_CHECKING:
    from mrv2_fixes.edit.vllm import Vllm


class Class:
    """A class, or the absence of one (name None)."""

    def __init__(self, vllm: Vllm, file: str, name: str | None) -> None:
        self._vllm = vllm
        self._file = file
        self._name = name

    def expect_attribute(
        self, name: str, set_in: Collection[str], *, inherited: bool = True
    ) -> None:
        """`name` is no more than what the methods `set_in` set. Raises Drift otherwise.

        inherited: those of the classes that it derives from too.
        """
        if self._name is None:
            return
        if self._vllm.members(self._file, self._name, name):
            raise Drift(self._file, self._name, f"self.{name} of the object", "it of the class")
        for file, method in self._vllm.setters(self._file, self._name, name, inherited=inherited):
            if method not in set_in:
                sought = f"self.{name} set in {' and '.join(set_in)} alone"
                raise Drift(file, self._name, sought, f"it set in {method}")

    def override(
        self,
        name: str,
        parameters: Mapping[str, str],
        *,
        ahead_of: str,
        imports: Mapping[str, str],
    ) -> Method:
        """The method `name` of the class itself; a new one calls what it overrides, and no more.

        parameters: their names and types. ahead_of: the method above which a new one goes.
        imports: names among the types, and the modules that they come from.
        """
        if self._name is None or self._vllm.definitions_in(self._file, self._name, name):
            return self.method(name)
        overridden = [*self._vllm.definitions(self._file, self._name, name)]
        if not overridden:
            raise Drift(self._file, self._name, f"method {name} to override", "no such method")
        for file, owner in overridden:
            found = parameters_of(self._vllm.definitions_in(file, owner, name)[0])
            if found != ["self", *parameters]:
                sought = f"the parameters {', '.join(parameters)}"
                raise Drift(file, f"{owner}.{name}", sought, ", ".join(found))
        typed = ", ".join(f"{one}: {kind}" for one, kind in parameters.items())
        text = f"def {name}(self, {typed}) -> None:\n    super().{name}({', '.join(parameters)})\n"
        for imported, module in imports.items():
            self._vllm.import_(self._file, imported, module)
        self._vllm.add_method(self._file, self._name, text, ahead_of=ahead_of)
        return self.method(name)

    def method(
        self, name: str, *, inherited: bool = False, renamed: str = "", shared: bool = False
    ) -> Method:
        """The method `name` of the class itself.

        inherited: newer releases have it in a base class. renamed: what they call it. Such a method
        is only read, since a change there would reach other classes too. shared: they are meant as
        well, and it is changed where it stands. Raises Drift when there is none, or a class has
        more than one.
        """
        if self._name is None:
            return Method(self._vllm, name, [(self._file, None)])
        own = self._file, self._name
        for candidate in filter(None, (name, renamed)):
            definitions = self._vllm.definitions(*own, candidate)
            nearest = next(definitions, None)
            if nearest is None:
                continue
            if inherited or shared:
                owned = shared or (candidate == name and nearest == own)
                return Method(
                    self._vllm,
                    candidate,
                    [nearest, *definitions],
                    inherited=not owned,
                    shared=shared,
                )
            if nearest != own:
                found = f"it inherited from {nearest[1]}"
                raise Drift(self._file, self._name, f"method {name} in the class itself", found)
            return Method(self._vllm, candidate, [own])
        raise Drift(self._file, self._name, f"method {name}", "no such method")
