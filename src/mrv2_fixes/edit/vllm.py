"""A vLLM's Python files, found by name in their syntax trees: file, class, method or function.

What is changed is changed in `mrv2_fixes.edit.method` and `mrv2_fixes.edit.function`; what is not
named keeps every byte.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import libcst as cst

from mrv2_fixes.edit import source, values
from mrv2_fixes.edit.class_ import Class
from mrv2_fixes.edit.drift import Drift
from mrv2_fixes.edit.function import Function
from mrv2_fixes.edit.imports import from_imports, imports_at, imports_module, with_import
from mrv2_fixes.edit.place import Place
from mrv2_fixes.edit.source import DECORATORS, code_of

PACKAGE = "vllm/v1/worker/gpu/"
# What makes attributes other than what they are set to, or classes than what they are written.
SPECIAL = (
    "__delattr__",
    "__getattr__",
    "__getattribute__",
    "__init_subclass__",
    "__new__",
    "__setattr__",
    "__slots__",
)
# What Python and LibCST raise for text that is not, or not sensibly, Python.
UNREADABLE = (
    cst.ParserSyntaxError,
    SyntaxError,
    ValueError,
    LookupError,
    RecursionError,
    MemoryError,
)


class Vllm:
    """The files of one vLLM, as an edit sees them.

    files: path below the root (``vllm/…``) to the file's bytes; read only as far as needed.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files
        self._read: dict[str, cst.Module] = {}
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
            try:
                if self._may_be_lossy(file) and self._read[file].bytes != self._files[file]:
                    raise Drift(
                        file, "", "a file that LibCST keeps to the byte", "form feeds or such"
                    )
                text = module.bytes
                compile(text, file, "exec", dont_inherit=True)
            except UNREADABLE as error:
                raise Drift(file, "", "a result that compiles", str(error)) from error
            self._texts[file] = (module, text)
        return self._texts[file][1]

    def _may_be_lossy(self, file: str) -> bool:
        """Whether a file has what LibCST has been seen not to keep; to make sure costs a walk."""
        plain = self._read[file].encoding.lower() in ("utf-8", "utf-8-sig")
        return not plain or re.search(rb"\f|\r(?!\n)", self._files[file]) is not None

    def mark(self) -> tuple[dict[str, cst.Module], set[str]]:
        """The present texts, for `restore`."""
        return dict(self._modules), set(self._changed)

    def restore(self, mark: tuple[dict[str, cst.Module], set[str]]) -> None:
        """Take back every change since `mark`."""
        self._modules, self._changed = mark

    def class_(self, file: str, name: str) -> Class:
        """The class `name` at the top level of `file`.

        file: a path below ``vllm/v1/worker/gpu/``, or from ``vllm/`` on.
        A class that is nowhere in that package is absent, and so is all that is asked of it. Raises
        Drift when the file is there without the class, or the class stands in another file.
        """
        path = file if file.startswith("vllm/") else PACKAGE + file
        if path in self._files:
            if self._definition(path, name) is None:
                raise Drift(path, "", f"class {name}", "no such class")
            return Class(self, path, name)
        self._expect_nowhere(path, "class", name)
        return Class(self, path, None)

    def function(self, file: str, name: str, *, optional: bool = False) -> Function:
        """The function `name` at the top level of `file`, as `class_` has a class.

        optional: a file that nowhere has the name lacks the function, and has not lost it.
        Raises Drift where there are two, or where the module may bind the name to something else.
        """
        path = PACKAGE + file
        if path in self._files and optional and not self.binds(path, name):
            return Function(self, path, name, present=False)
        if path in self._files:
            self.function_in(path, name)
            return Function(self, path, name, present=True)
        self._expect_nowhere(path, "def", name)
        return Function(self, path, name, present=False)

    def _expect_nowhere(self, path: str, keyword: str, name: str) -> None:
        """Raise Drift where what `path` would define is defined in another file of the package."""
        sign = re.compile(rf"\b{keyword}[\s\\]+{name}\b|^\s*{name}\s*=".encode(), re.MULTILINE)
        what = {"def": "function"}.get(keyword, keyword)
        package = PACKAGE if path.startswith(PACKAGE) else f"{path.rpartition('/')[0]}/"
        for other in sorted(self._files):
            if other.startswith(package) and sign.search(self._files[other]):
                raise Drift(path, "", f"{what} {name}", f"no such file, and the {what} in {other}")

    def module(self, path: str) -> cst.Module:
        """The syntax tree of a file. Raises Drift when it does not parse."""
        self.consulted.add(path)
        if path not in self._modules:
            try:
                self._modules[path] = self._read[path] = _parsed(path, self._files[path])
            except UNREADABLE as error:
                reason = " ".join(str(error).split("\n\n")[0].split())
                raise Drift(path, "", "Python source", f"what does not parse ({reason})") from error
        return self._modules[path]

    def _definition(self, path: str, name: str) -> cst.ClassDef | None:
        found, hidden = source.classes(self.module(path), name)
        if len(found) > 1 or hidden:
            raise Drift(path, "", f"one class {name}", f"{len(found)}, or it changed afterwards")
        for definition in found:
            if definition.decorators or definition.keywords:
                raise Drift(path, name, "a class as it is written", "a decorator or metaclass")
            special = _special(definition)
            if special:
                raise Drift(path, name, "attributes that are what they are set to", special)
        return found[0] if found else None

    def definitions_in(self, path: str, owner: str, method: str) -> list[cst.FunctionDef]:
        """The definitions of `method` in the body of class `owner`; Drift when one is hidden."""
        definition = self._definition(path, owner)
        if definition is None:
            return []
        found, hidden = source.functions(definition, method)
        if hidden:
            raise Drift(path, owner, f"one method {method}", "another in a branch or assignment")
        for decorator in (one for function in found for one in function.decorators):
            if code_of(decorator.decorator) not in DECORATORS:
                sought = f"method {method} as it is written"
                raise Drift(path, owner, sought, f"@{code_of(decorator.decorator)}")
        return found

    def function_in(self, path: str, name: str) -> cst.FunctionDef:
        """The one function `name` of a module; Drift where the name may come to be another's."""
        module = self.module(path)
        found, hidden = source.functions(module, name)
        if not found and not self.binds(path, name):
            raise Drift(path, "", f"function {name}", "no such function")
        if len(found) != 1 or hidden or self.binds(path, name) != 1:
            raise Drift(path, "", f"one function {name}", f"{len(found)}, or it bound again")
        out_of_sight = source.sets_out_of_sight(module, name)
        if out_of_sight:
            raise Drift(path, name, "names that are bound in the open", out_of_sight)
        return found[0]

    def expect_import(
        self, path: str, name: str, module: str, ahead_of: cst.FunctionDef | None = None
    ) -> None:
        """A file has `name` from that module and in no other way. Raises Drift otherwise.

        ahead_of: the function at the top level that needs it as soon as it is defined.
        """
        tree = self.module(path)
        index = imports_at(tree, name, module)
        if index is None or self.binds(path, name) != 1:
            raise Drift(path, "", f"{name} imported from {module}, once", "none, or another")
        if ahead_of in tree.body[:index]:
            raise Drift(path, "", f"{name} imported first", "it imported behind its use")

    def import_(
        self, path: str, name: str, module: str, ahead_of: cst.FunctionDef | None = None
    ) -> None:
        """The same; imported where nothing in the file has that name."""
        if not self.binds(path, name):
            new = with_import(self.module(path), name, module)
            if new is None:
                package = module.partition(".")[0]
                raise Drift(path, "", f"an import from {package} to stand beside", "none")
            self._put(path, new)
        self.expect_import(path, name, module, ahead_of)

    def imports(self, path: str, name: str) -> bool:
        """Whether `name` is a module that the file imports, and nothing else."""
        return self.binds(path, name) == 1 and imports_module(self.module(path), name)

    def sets(self, path: str, owner: str, attribute: str) -> bool:
        """Whether the `__init__`s that class `owner` has set `attribute`, as ``self.x``, once.

        A property that they do not set is as good.
        """
        stored: Counter[str] = Counter()
        for file, name in self.definitions(path, owner, "__init__"):
            bound, _, by_string = source.names(self.definitions_in(file, name, "__init__")[0])
            if by_string:
                return False
            stored += bound
        if not stored[attribute]:
            return self._is_property(path, owner, attribute.removeprefix("self."))
        return stored[attribute] == 1

    def _is_property(self, path: str, owner: str, name: str) -> bool:
        """Whether class `owner`, or the nearest that it derives from, has the property `name`."""
        definition = self._definition(path, owner)
        if definition is None:
            raise Drift(path, "", f"class {owner}", "no such class")
        found, hidden = source.functions(definition, name)
        if found or hidden:
            decorators = [code_of(one.decorator) for one in found[0].decorators] if found else []
            return len(found) == 1 and not hidden and decorators == ["property"]
        return any(self._is_property(*base, name) for base in self._bases(path, owner))

    def binds(self, path: str, name: str) -> int:
        """How often the module binds `name`; a ``global`` in a function counts too."""
        module = self.module(path)
        times = sum(source.times(line, name) for line in module.body)
        return times + len(re.findall(rf"\bglobal\b.*\b{name}\b".encode(), self._files[path]))

    def members(self, path: str, owner: str, name: str) -> bool:
        """Whether class `owner`, or one that it derives from, has `name` itself."""
        definition = self._definition(path, owner)
        if definition is None:
            raise Drift(path, "", f"class {owner}", "no such class")
        return any(source.times(line, name) for line in definition.body.body) or any(
            self.members(*base, name) for base in self._bases(path, owner)
        )

    def setters(
        self, path: str, owner: str, attribute: str, *, inherited: bool = True
    ) -> Iterator[tuple[str, str]]:
        """File and name of each method that may set `attribute` of self.

        Of all in the file of class `owner`, and inherited: in those of its base classes. Only of
        the file as it was read, since most have no such name and need not be searched.
        """
        self.module(path)  # raises Drift where it does not parse
        if attribute.encode() in self._files[path]:
            tree = ast.parse(self._files[path])
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef) and (
                    f"self.{attribute}" in values.stores(node) or values.by_string(node)
                ):
                    yield path, node.name
        for base in self._bases(path, owner) if inherited else ():
            yield from self.setters(*base, attribute)

    def _bases(self, path: str, name: str) -> Iterator[tuple[str, str]]:
        """File and name of each base class of vLLM's, nearest first; Drift for one elsewhere."""
        definition = self._definition(path, name)
        imported = {
            alias.evaluated_alias or alias.evaluated_name: (statement, alias.evaluated_name)
            for _, statement in from_imports(self.module(path))
            if not isinstance(statement.names, cst.ImportStar)
            for alias in statement.names
        }
        for base in definition.bases if definition else ():
            called = code_of(base.value)
            if base.star or not isinstance(base.value, cst.Name | cst.Attribute):
                raise Drift(path, name, "the class's bases by name", called)
            head = called.partition(".")[0]
            if self.binds(path, head) > 1:
                raise Drift(path, name, f"base {called} bound once", "it bound again")
            statement, original = imported.get(head, (None, ""))
            if statement is None:
                # Otherwise an `import torch.nn as nn`, or a name of Python's own.
                if self._definition(path, called) is not None:
                    yield path, called
                continue
            module = code_of(statement.module) if statement.module else ""
            file = module.replace(".", "/") + ".py"
            if file in self._files and "." not in called and not statement.relative:
                yield file, original
            elif statement.relative or module.partition(".")[0] == "vllm":
                raise Drift(path, name, "the class's bases in these files", f"{called} elsewhere")

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

    def replace(
        self, path: str, owner: str | None, old: cst.FunctionDef, new: cst.FunctionDef
    ) -> None:
        """Put `new` in the place of `old`, a method of `owner` or a function of the module."""
        module = self.module(path)
        if owner is None:
            self._put(path, module.with_changes(body=_replaced(module.body, old, new)))
            return
        definition = self._definition(path, owner)
        assert definition is not None
        body = definition.body.with_changes(body=_replaced(definition.body.body, old, new))
        changed = definition.with_changes(body=body)
        self._put(path, module.with_changes(body=_replaced(module.body, definition, changed)))

    def add_method(self, path: str, owner: str, text: str, *, ahead_of: str) -> None:
        """Put the method `text` (without indentation) ahead of another one of class `owner`."""
        module = self.module(path)
        definition = self._definition(path, owner)
        found = self.definitions_in(path, owner, ahead_of)
        if definition is None or len(found) != 1:
            raise Drift(path, owner, f"one method {ahead_of}", f"{len(found)} of them")
        native = text.replace("    ", module.default_indent).replace("\n", module.default_newline)
        new = cst.parse_statement(native, config=module.config_for_parsing)
        new = cst.ensure_type(new, cst.FunctionDef)
        new = new.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
        index = definition.body.body.index(found[0])
        body = [*definition.body.body[:index], new, *definition.body.body[index:]]
        changed = definition.with_changes(body=definition.body.with_changes(body=body))
        self._put(path, module.with_changes(body=_replaced(module.body, definition, changed)))

    def _put(self, path: str, module: cst.Module) -> None:
        self._modules[path] = module
        self._changed.add(path)


@lru_cache(maxsize=32)
def _parsed(path: str, content: bytes) -> cst.Module:
    """The tree of a file, one for all plans of it: parsing is half of a plan."""
    # Python itself first: it has limits where LibCST's parser has none.
    compile(content, path, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    return cst.parse_module(content)


@lru_cache(maxsize=256)
def _special(owner: cst.ClassDef) -> str:
    """The first of `SPECIAL` that a class has, or empty."""
    for line in owner.body.body:
        if isinstance(line, cst.FunctionDef | cst.ClassDef):
            bound = [line.name.value]
        else:
            bound = [*source.names(line)[0]]
        for name in bound:
            if name in SPECIAL:
                return name
    return ""


def _replaced(
    body: Sequence[cst.BaseStatement | cst.BaseSmallStatement],
    old: cst.BaseStatement,
    new: cst.BaseStatement,
) -> list[cst.BaseStatement | cst.BaseSmallStatement]:
    return [new if node is old else node for node in body]
