"""A vLLM's Python files, found by name in their syntax trees: file, class, method.

What is changed is changed in `mrv2_fixes.edit.method`; what is not named keeps every byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import libcst as cst

from mrv2_fixes.edit.drift import Drift
from mrv2_fixes.edit.method import Method, Place, code_of

PACKAGE = "vllm/v1/worker/gpu/"


class Vllm:
    """The files of one vLLM, as an edit sees them.

    files: path below the root (``vllm/…``) to the file's bytes; read only as far as needed.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files
        self._modules: dict[str, cst.Module] = {}
        self._changed: set[str] = set()
        self._texts: dict[str, tuple[cst.Module, bytes]] = {}
        self.consulted: set[str] = set()
        self.places: list[Place] = []

    def changed(self) -> dict[str, bytes]:
        """The new bytes of every file that an edit changed; each compiles.

        Raises Drift when a result does not compile.
        """
        return {file: self._text(file, self._modules[file]) for file in sorted(self._changed)}

    def _text(self, file: str, module: cst.Module) -> bytes:
        """The bytes of a changed file, made and compiled once for each change."""
        if self._texts.get(file, (None, b""))[0] is not module:
            text = module.bytes
            try:
                compile(text, file, "exec", dont_inherit=True)
            except (SyntaxError, ValueError) as error:
                raise Drift(file, "", "a result that compiles", str(error)) from error
            self._texts[file] = (module, text)
        return self._texts[file][1]

    def mark(self) -> tuple[dict[str, cst.Module], set[str]]:
        """The present texts, for `restore`."""
        return dict(self._modules), set(self._changed)

    def restore(self, mark: tuple[dict[str, cst.Module], set[str]]) -> None:
        """Take back every change since `mark`."""
        self._modules, self._changed = mark

    def class_(self, file: str, name: str) -> Class:
        """The class `name` at the top level of `file` (a path below ``vllm/v1/worker/gpu/``).

        A class that is nowhere in that package is absent, and so is all that is asked of it. Raises
        Drift when the file is there without the class, or the class stands in another file.
        """
        path = PACKAGE + file
        if path in self._files:
            if self._definition(path, name) is None:
                raise Drift(path, "", f"class {name}", "no such class")
            return Class(self, path, name)
        for other in sorted(self._files):
            if other.startswith(PACKAGE) and re.search(
                rf"^class {name}\b".encode(), self._files[other], re.MULTILINE
            ):
                raise Drift(path, "", f"class {name}", f"no such file, and the class in {other}")
        return Class(self, path, None)

    def module(self, path: str) -> cst.Module:
        """The syntax tree of a file. Raises Drift when it does not parse."""
        self.consulted.add(path)
        if path not in self._modules:
            try:
                self._modules[path] = cst.parse_module(self._files[path])
            except (cst.ParserSyntaxError, UnicodeError, SyntaxError, LookupError) as error:
                reason = " ".join(str(error).split("\n\n")[0].split())
                raise Drift(path, "", "Python source", f"what does not parse ({reason})") from error
        return self._modules[path]

    def _definition(self, path: str, name: str) -> cst.ClassDef | None:
        found = [
            node
            for node in self.module(path).body
            if isinstance(node, cst.ClassDef) and node.name.value == name
        ]
        if len(found) > 1:
            raise Drift(path, "", f"one class {name}", f"{len(found)} of them")
        return found[0] if found else None

    def definitions_in(self, path: str, owner: str, method: str) -> list[cst.FunctionDef]:
        """The definitions of `method` in the body of class `owner`."""
        definition = self._definition(path, owner)
        return [
            node
            for node in (definition.body.body if definition else ())
            if isinstance(node, cst.FunctionDef) and node.name.value == method
        ]

    def _bases(self, path: str, name: str) -> Iterator[tuple[str, str]]:
        """File and name of each base class that stands in these files, nearest first."""
        definition = self._definition(path, name)
        for base in definition.bases if definition else ():
            if not isinstance(base.value, cst.Name):
                continue
            if self._definition(path, base.value.value) is not None:
                yield path, base.value.value
                continue
            for statement in self._imports(path):
                if statement.module is None or isinstance(statement.names, cst.ImportStar):
                    continue
                file = code_of(statement.module).replace(".", "/") + ".py"
                for alias in statement.names:
                    local = alias.evaluated_alias or alias.evaluated_name
                    if local == base.value.value and file in self._files:
                        yield file, alias.evaluated_name

    def _imports(self, path: str) -> Iterator[cst.ImportFrom]:
        for line in self.module(path).body:
            if isinstance(line, cst.SimpleStatementLine):
                yield from (node for node in line.body if isinstance(node, cst.ImportFrom))

    def definitions(
        self, path: str, name: str, method: str, within: tuple[str, ...] = ()
    ) -> Iterator[tuple[str, str]]:
        """File and class of each definition of `method` that class `name` has, nearest first."""
        if name in within:
            return
        found = self.definitions_in(path, name, method)
        if len(found) > 1:
            raise Drift(path, name, f"one method {method}", f"{len(found)} of them")
        if found:
            yield path, name
        for base in self._bases(path, name):
            yield from self.definitions(*base, method, (*within, name))

    def replace(self, path: str, owner: str, old: cst.FunctionDef, new: cst.FunctionDef) -> None:
        """Put `new` in the place of method `old` of class `owner`."""
        module = self.module(path)
        definition = self._definition(path, owner)
        assert definition is not None
        body = definition.body.with_changes(
            body=[new if node is old else node for node in definition.body.body]
        )
        changed = definition.with_changes(body=body)
        self._modules[path] = module.with_changes(
            body=[changed if node is definition else node for node in module.body]
        )
        self._changed.add(path)


class Class:
    """A class, or the absence of one (name None)."""

    def __init__(self, vllm: Vllm, file: str, name: str | None) -> None:
        self._vllm = vllm
        self._file = file
        self._name = name

    def method(self, name: str, *, inherited: bool = False, renamed: str = "") -> Method:
        """The method `name` of the class itself.

        inherited: newer releases have it in a base class. renamed: what they call it. Such a method
        is only read, since a change there would reach other classes too. Raises Drift when there is
        none, or a class has more than one.
        """
        if self._name is None:
            return Method(self._vllm, name, [(self._file, None)])
        for candidate in filter(None, (name, renamed)):
            definitions = list(self._vllm.definitions(self._file, self._name, candidate))
            if not definitions:
                continue
            own = candidate == name and definitions[0] == (self._file, self._name)
            if not own and not inherited:
                found = f"it inherited from {definitions[0][1]}"
                raise Drift(self._file, self._name, f"method {name} in the class itself", found)
            return Method(self._vllm, candidate, definitions, inherited=not own)
        raise Drift(self._file, self._name, f"method {name}", "no such method")
