"""The body of one method, as every verb looks at it: what stands in it, and what can stand where.

A verb itself is in `mrv2_fixes.edit.method`.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from typing import NoReturn, Protocol

import libcst as cst

from mrv2_fixes.edit import values
from mrv2_fixes.edit.drift import Drift
from mrv2_fixes.edit.place import Place
from mrv2_fixes.edit.source import calls, code_of, ends_in, is_name, values_of


class Files(Protocol):
    """What a method needs of the files that it stands in; see `mrv2_fixes.edit.vllm.Vllm`."""

    places: list[Place]

    def module(self, path: str) -> cst.Module: ...

    def definitions_in(self, path: str, owner: str, method: str) -> list[cst.FunctionDef]: ...

    def sets(self, path: str, owner: str, attribute: str) -> bool: ...

    def binds(self, path: str, name: str) -> int: ...

    def imports(self, path: str, name: str) -> bool: ...

    def expect_import(self, path: str, name: str, module: str) -> None: ...

    def import_(self, path: str, name: str, module: str) -> None: ...

    def replace(
        self, path: str, owner: str, old: cst.FunctionDef, new: cst.FunctionDef
    ) -> None: ...


class Body:
    """The body of the method `name` in the class `owner` of `file`, as it is at the moment."""

    def __init__(self, files: Files, file: str, owner: str, name: str) -> None:
        self._files = files
        self._file = file
        self._owner = owner
        self._name = name

    @property
    def node(self) -> cst.FunctionDef:
        """The definition. Raises Drift where a line has more than one statement."""
        node = self._files.definitions_in(self._file, self._owner, self._name)[0]
        # Statements are told by their number, which semicolons would make another in each tree.
        if not isinstance(node.body, cst.IndentedBlock) or any(
            isinstance(line, cst.SimpleStatementLine) and len(line.body) > 1
            for line in node.body.body
        ):
            self.drift("a line for each statement", "several on one line")
        return node

    @property
    def values(self) -> values.Method:
        """The values in it. Raises Drift where names are bound out of sight."""
        try:
            found = values_of(self.node)
        except (SyntaxError, ValueError, RecursionError) as error:
            self.drift("a method that this Python reads", f"one that it does not ({error})")
        if found.by_string:
            self.drift("names that are bound in the open", found.by_string)
        return found

    def binds(self, name: str) -> bool:
        """Whether `name` is not Python's own here, since the method or the module binds it."""
        return self.values.binds(name) or self._files.binds(self._file, name) > 0

    def call(self, name: str, *, nested: bool = False) -> tuple[cst.Call, int]:
        """The one call of `name`, and the number of the statement that it is in.

        name: with ``self.`` where it is a method. nested: it may be in a branch or inner function.
        """
        node = self.node
        found = [at for at in calls(node) if ends_in(at[0].func, name)]
        if len(found) != 1 or self.values.loads[name] != 1:
            self.drift(f"one call of {name}", f"{len(found)} of them, or it by another name")
        if self.values.binds(name) or self._files.binds(self._file, name) > 1:
            self.drift(f"{name} bound once, by the module", "it bound in another way")
        call, index = found[0]
        if not nested and not isinstance(node.body.body[index], cst.SimpleStatementLine):
            self.drift(f"the call of {name} outside branches", "it in a branch or inner function")
        return call, index

    def assignment(self, name: str, *, first: bool = False) -> int:
        """The number of the one plain assignment to `name`; first: of several, the first."""
        found = [
            index
            for index, statement in enumerate(self.node.body.body)
            if isinstance(statement, cst.SimpleStatementLine)
            and isinstance(statement.body[0], cst.Assign)
            and self.values.stores_within(index)[name]
        ]
        if not found or (len(found) > 1 and not first):
            self.drift(f"one assignment to {name}", f"{len(found)} of them")
        return found[0]

    def check_place(
        self,
        code: str,
        index: int,
        ahead_of: Sequence[str] = (),
        own: str = "",
        known: Collection[str] = frozenset(),
    ) -> None:
        """Drift unless `code` can stand as statement `index`, or in it.

        It is reached, each of its names has its value, and the calls of `ahead_of` come behind it.
        own: an attribute that the method itself sets. known: names that come with it.
        """
        if self.values.leaves_before(index):
            self.drift("a place that is reached", "a return before it")
        names = {n.id for n in ast.walk(values.expression(code)) if isinstance(n, ast.Name)}
        others = {name for name in names if not self.values.binds(name)}
        modules = {name for name in others if self._files.imports(self._file, name)}
        name = self.values.unbound(code, index, own, {*modules, *known})
        if name:
            self.drift(f"{name} with its value before it is used", "none, or a changed one")
        for name in sorted(others - modules):
            if self._files.binds(self._file, name):
                self.drift(f"Python's own {name}", "another one")
        for call, at in calls(self.node):
            if at < index and code_of(call.func).rpartition(".")[2] in ahead_of:
                self.drift(f"it ahead of {code_of(call.func)}", "it behind that")

    def check_attributes(self, code: str) -> None:
        """Drift unless every attribute of self in `code` is set by an `__init__`."""
        for node in ast.walk(values.expression(code)):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "self"
                and not self._files.sets(self._file, self._owner, f"self.{node.attr}")
            ):
                self.drift(f"self.{node.attr} set by __init__", "no such attribute")

    def check_taken(self, name: str, takers: Sequence[str]) -> None:
        """Drift unless each of the calls `takers` takes `name`, and as it was assigned."""
        found = [
            call for call, _ in calls(self.node) if code_of(call.func).rpartition(".")[2] in takers
        ]
        for call in found:
            if not any(is_name(arg.value, name) and not arg.star for arg in call.args):
                self.drift(f"{name} in {code_of(call.func)}", "another value, or none")
        changed = [path for path in self.values.stores if path.startswith(f"{name}.")]
        if changed or not found:
            self.drift(
                f"{name} taken as it was assigned by {' or '.join(takers)}",
                f"{changed[0]} set" if changed else "no such call",
            )

    def expression(self, code: str, old: cst.BaseExpression | None = None) -> cst.BaseExpression:
        """`code`, its further lines indented one level more, as an argument's are.

        old: what it takes the place of; its parentheses stay, with the comments in them.
        """
        module = self._files.module(self._file)
        text = self._native(code.replace("\n", "\n    "))
        new = cst.parse_expression(text, config=module.config_for_parsing)
        if old is None:
            return new
        return new.with_changes(lpar=[*old.lpar, *new.lpar], rpar=[*new.rpar, *old.rpar])

    def _native(self, code: str) -> str:
        """`code` with the file's own indentation and line ends."""
        module = self._files.module(self._file)
        return code.replace("    ", module.default_indent).replace("\n", module.default_newline)

    def with_expression(self, old: cst.BaseExpression, new: cst.BaseExpression) -> cst.FunctionDef:
        """The definition with `new` in the place of `old`."""
        return cst.ensure_type(self.node.deep_replace(old, new), cst.FunctionDef)

    def with_statement(self, index: int, new: cst.BaseStatement) -> cst.FunctionDef:
        """The definition with `new` in the place of statement `index`."""
        body = [*self.node.body.body]
        body[index] = new
        return self._with_body(body)

    def with_lines(self, index: int, code: str) -> cst.FunctionDef:
        """The definition with the statements `code` put in as number `index` and on."""
        config = self._files.module(self._file).config_for_parsing
        new = cst.parse_module(self._native(code), config)
        first = new.body[0].with_changes(leading_lines=[*new.header, *new.body[0].leading_lines])
        body = self.node.body.body
        return self._with_body([*body[:index], first, *new.body[1:], *body[index:]])

    def without(self, index: int) -> cst.FunctionDef:
        """The definition without statement `index` and the comments above it."""
        body = self.node.body.body
        return self._with_body([*body[:index], *body[index + 1 :]])

    def _with_body(self, body: Sequence[cst.CSTNode]) -> cst.FunctionDef:
        node = self.node
        return node.with_changes(body=node.body.with_changes(body=body))

    def replace(self, new: cst.FunctionDef) -> None:
        """Put the definition `new` in the place of the present one."""
        self._files.replace(self._file, self._owner, self.node, new)

    def drift(self, sought: str, found: str) -> NoReturn:
        """Raise Drift for this method."""
        raise Drift(self._file, f"{self._owner}.{self._name}", sought, found)
