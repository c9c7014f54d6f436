"""What an edit can ask of one method.

Every operation is about one place and converges: what is wanted is there already, or its starting
point is there and is changed, or `Drift` says what stands there instead.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn, Protocol

import libcst as cst
import libcst.matchers as m

from mrv2_fixes.edit import values
from mrv2_fixes.edit.drift import Drift


class Outcome(enum.Enum):
    """What became of one place."""

    ABSENT = "absent"  # neither the class nor its file exists
    PRESENT = "present"
    CHANGED = "changed"


@dataclass(frozen=True)
class Place:
    """One place that an edit was about, for people to read."""

    file: str
    symbol: str
    what: str
    outcome: Outcome


class Files(Protocol):
    """What a method needs of the files that it stands in; see `mrv2_fixes.edit.vllm.Vllm`."""

    places: list[Place]

    def module(self, path: str) -> cst.Module: ...

    def definitions_in(self, path: str, owner: str, method: str) -> list[cst.FunctionDef]: ...

    def replace(
        self, path: str, owner: str, old: cst.FunctionDef, new: cst.FunctionDef
    ) -> None: ...


class Method:
    """A method, or the absence of one.

    definitions: file and class of the method and then of those that it overrides, nearest first;
    the class is None where it does not exist.
    inherited: it is not the class's own, so that it may be read and not changed.
    """

    def __init__(
        self,
        files: Files,
        name: str,
        definitions: Sequence[tuple[str, str | None]],
        *,
        inherited: bool = False,
    ) -> None:
        self._files = files
        self._name = name
        (self._file, self._owner), *self._overridden = definitions
        self._inherited = inherited

    def keyword(
        self,
        call: str,
        name: str,
        *,
        now: str,
        was: str | None,
        also: Sequence[str] = (),
        before: str = "",
    ) -> None:
        """The one call of `call` has the keyword `name` with the value `now`.

        was: its value at the start; None when the keyword is not there at the start.
        also: other values that serve as well, as newer releases have them.
        before: the keyword before which a new one goes.
        """
        if self._absent(f"{name} of {call}"):
            return
        values_ = self._values()
        found = self._call(call)
        if any(arg.keyword is None for arg in found.args):
            self._drift(f"{call} called with keywords alone", "positional or starred arguments")
        present = [arg for arg in found.args if arg.keyword and arg.keyword.value == name]
        if len(present) > 1:
            self._drift(f"keyword {name} of {call}", f"{len(present)} of them")
        if not present:
            if was is not None:
                self._drift(f"{name}={was} in {call}", "no such keyword")
            self._done(
                f"{name} of {call}", self._with(found, self._added(found, name, now, before))
            )
            return
        value = code_of(present[0].value)
        if any(values_.same(value, wanted) for wanted in (now, *also)):
            self._done(f"{name} of {call}", None)
        elif was is not None and values_.same(value, was):
            new = present[0].with_changes(value=self._expression(now))
            args = [new if arg is present[0] else arg for arg in found.args]
            self._done(f"{name} of {call}", self._with(found, found.with_changes(args=args)))
        else:
            sought = f"{name}={was}" if was is not None else f"no keyword {name}"
            self._drift(f"{sought} in {call}", f"{name}={_line(value)}")

    def assign(
        self, target: str, value: str, *, after: str, also: Sequence[str] = (), comment: str = ""
    ) -> None:
        """`target` is assigned `value`, once; a new assignment goes behind that of `after`.

        also: other values that serve as well. comment: one line above a new assignment.
        """
        if self._absent(target):
            return
        for file, owner in self._overridden:
            base = Method(self._files, self._name, [(file, owner)], inherited=True)
            if not self._values().stores[target] and base._values().stores[target]:
                base.assign(target, value, after=after, also=also)
                return
        values_ = self._values()
        if values_.stores[target]:
            there = values_.value(target)
            if there is None:
                self._drift(
                    f"one assignment to {target}", f"{values_.stores[target]} or nested ones"
                )
            elif any(values_.same(there, wanted) for wanted in (value, *also)):
                self._done(target, None)
            else:
                self._drift(
                    f"no assignment to {target}, or {_line(value)}",
                    _line(ast.unparse(there)),
                )
            return
        node = self._node()
        anchors = [
            index
            for index, statement in enumerate(node.body.body)
            if m.matches(statement, m.SimpleStatementLine(body=[m.Assign() | m.AnnAssign()]))
            and after in values.stores(ast.parse(code_of(statement).strip()))
        ]
        if len(anchors) != 1:
            self._drift(f"one assignment to {after}", f"{len(anchors)} of them")
        note = f"# {comment}\n" if comment else ""
        statement = self._statement(f"{note}{target} = {value}")
        body = list(node.body.body)
        body.insert(anchors[0] + 1, statement)
        self._done(target, node.with_changes(body=node.body.with_changes(body=body)))

    def condition(self, guarding: str, *, was: str, now: str) -> None:
        """The one ``if`` whose own body assigns `guarding` has the condition `now`, not `was`."""
        what = f"condition of {guarding}"
        if self._absent(what):
            return
        node = self._node()
        found = [
            statement
            for statement in node.body.body
            if isinstance(statement, cst.If)
            and any(
                guarding in values.stores(ast.parse(code_of(inner).strip()))
                for inner in statement.body.body
                if isinstance(inner, cst.SimpleStatementLine)
            )
        ]
        if len(found) != 1:
            self._drift(f"one if that assigns {guarding}", f"{len(found)} of them")
        test = code_of(found[0].test)
        values_ = self._values()
        if values_.same(test, now):
            self._done(what, None)
        elif values_.same(test, was):
            new = found[0].with_changes(test=self._expression(now))
            body = [new if statement is found[0] else statement for statement in node.body.body]
            self._done(what, node.with_changes(body=node.body.with_changes(body=body)))
        else:
            self._drift(f"if {was}", f"if {_line(test)}")

    def unwrap(self, call: str, around: str) -> None:
        """The call `around` stands in the method once, without a call of `call` around it."""
        what = f"{call}() around {around}"
        if self._absent(what):
            return
        calls = _calls(self._node())
        found = [node for node in calls if code_of(node) == around]
        if len(found) != 1:
            self._drift(f"{around} once", f"{len(found)} of them")
        for outer in calls:
            if m.matches(outer.func, m.Name(call)) and [arg.value for arg in outer.args] == found:
                self._done(what, self._with(outer, found[0]))
                return
        self._done(what, None)

    # What the operations share.

    @property
    def _symbol(self) -> str:
        return f"{self._owner}.{self._name}" if self._owner else self._name

    def _absent(self, what: str) -> bool:
        if self._owner is None:
            self._files.places.append(Place(self._file, self._symbol, what, Outcome.ABSENT))
        return self._owner is None

    def _node(self) -> cst.FunctionDef:
        assert self._owner is not None
        node = self._files.definitions_in(self._file, self._owner, self._name)[0]
        if not isinstance(node.body, cst.IndentedBlock):
            self._drift("a body of its own lines", "a body on one line")
        return node

    def _values(self) -> values.Method:
        return _values_of(self._node())

    def _call(self, name: str) -> cst.Call:
        called = m.Name(name) | m.Attribute(attr=m.Name(name))
        found = [node for node in _calls(self._node()) if m.matches(node.func, called)]
        if len(found) != 1:
            self._drift(f"one call of {name}", f"{len(found)} of them")
        return found[0]

    def _with(self, old: cst.Call, new: cst.BaseExpression) -> cst.FunctionDef:
        return cst.ensure_type(self._node().deep_replace(old, new), cst.FunctionDef)

    def _added(self, call: cst.Call, name: str, value: str, before: str) -> cst.Call:
        """`call` with one more keyword, laid out as its neighbours are."""
        index = next(
            (i for i, arg in enumerate(call.args) if arg.keyword and arg.keyword.value == before),
            None,
        )
        if index is None:
            self._drift(f"keyword {before} of the call", "no such keyword")
        neighbour = call.args[index]
        if index:
            gap = call.args[index - 1].comma
        else:
            gap = cst.Comma(whitespace_after=call.whitespace_before_args)
        comma = cst.ensure_type(gap, cst.Comma)
        space = comma.whitespace_after
        if isinstance(space, cst.ParenthesizedWhitespace):
            # The neighbour's comment stays the neighbour's.
            plain = space.first_line.with_changes(comment=None, whitespace=cst.SimpleWhitespace(""))
            space = space.with_changes(first_line=plain, empty_lines=[])
        new = cst.Arg(
            keyword=cst.Name(name),
            value=self._expression(value),
            equal=neighbour.equal,
            comma=cst.Comma(whitespace_after=space),
        )
        return call.with_changes(args=[*call.args[:index], new, *call.args[index:]])

    def _expression(self, code: str) -> cst.BaseExpression:
        """`code`, its further lines indented one level more, as an argument's are."""
        module = self._files.module(self._file)
        text = code.replace("\n", "\n    ")
        return cst.parse_expression(self._native(text), config=module.config_for_parsing)

    def _statement(self, code: str) -> cst.SimpleStatementLine | cst.BaseCompoundStatement:
        module = self._files.module(self._file)
        return cst.parse_statement(self._native(code), config=module.config_for_parsing)

    def _native(self, code: str) -> str:
        """`code` with the file's own indentation and line ends."""
        module = self._files.module(self._file)
        return code.replace("    ", module.default_indent).replace("\n", module.default_newline)

    def _done(self, what: str, changed: cst.FunctionDef | None) -> None:
        """Record the outcome, and put the changed method in its place."""
        if changed is not None:
            assert self._owner is not None
            if self._inherited:
                self._drift(f"{self._name} in the class itself", f"it inherited from {self._owner}")
            self._files.replace(self._file, self._owner, self._node(), changed)
        outcome = Outcome.PRESENT if changed is None else Outcome.CHANGED
        self._files.places.append(Place(self._file, self._symbol, what, outcome))

    def _drift(self, sought: str, found: str) -> NoReturn:
        raise Drift(self._file, self._symbol, sought, found)


# Each is asked for more than once of the same tree, and costs a walk over it.
@lru_cache(maxsize=64)
def _calls(node: cst.FunctionDef) -> tuple[cst.Call, ...]:
    found = m.findall(node, m.Call())
    return tuple(cst.ensure_type(call, cst.Call) for call in found)


@lru_cache(maxsize=64)
def _values_of(node: cst.FunctionDef) -> values.Method:
    return values.Method(code_of(node))


def code_of(node: cst.CSTNode) -> str:
    """The source of a node."""
    return cst.Module([]).code_for_node(node)


def _line(code: str) -> str:
    return " ".join(code.split())
