"""What an edit can ask of one method.

Every operation is about one place and converges: what is wanted is there already, or its starting
point is there and is changed, or `Drift` says what stands there instead.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator, Sequence
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

    def sets(self, path: str, owner: str, attribute: str) -> bool: ...

    def binds(self, path: str, name: str) -> int: ...

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
        found, index = self._call(call)
        self._check_place(now, index)
        if any(arg.keyword is None for arg in found.args):
            self._drift(f"{call} called with keywords alone", "positional or starred arguments")
        present = [arg for arg in found.args if arg.keyword and arg.keyword.value == name]
        if len(present) > 1:
            self._drift(f"keyword {name} of {call}", f"{len(present)} of them")
        if not present:
            if was is not None:
                self._drift(f"{name}={was} in {call}", "no such keyword")
            self._check_attributes(now)
            self._done(
                f"{name} of {call}", self._with(found, self._added(found, name, now, before))
            )
            return
        value = code_of(present[0].value)
        if any(values_.same(value, wanted) for wanted in (now, *also)):
            self._done(f"{name} of {call}", None)
        elif was is not None and values_.same(value, was):
            self._check_attributes(now)
            new = present[0].with_changes(value=self._expression(now, present[0].value))
            args = [new if arg is present[0] else arg for arg in found.args]
            self._done(f"{name} of {call}", self._with(found, found.with_changes(args=args)))
        else:
            sought = f"{name}={was}" if was is not None else f"no keyword {name}"
            self._drift(f"{sought} in {call}", f"{name}={_line(value)}")

    def assign(
        self,
        target: str,
        value: str,
        *,
        after: str,
        ahead_of: Sequence[str] = (),
        also: Sequence[str] = (),
        comment: str = "",
    ) -> None:
        """`target` is assigned `value`, once; a new assignment goes behind that of `after`.

        ahead_of: the calls that need it, by the names that they have in one release or another.
        also: other values that serve as well. comment: one line above a new assignment.
        """
        if self._absent(target):
            return
        values_ = self._values()
        if self._values().sets_otherwise(target):
            self._drift(f"{target} set by that name alone", "it set by another one")
        if not values_.stores[target]:
            inherited = self._inherited_store(target)
            if inherited is not None:
                inherited.assign(target, value, after=after, ahead_of=ahead_of, also=also)
                return
        if values_.stores[target]:
            there = values_.value(target)
            if there is None:
                self._drift(
                    f"one assignment to {target}", f"{values_.stores[target]} or nested ones"
                )
            index = values_.index(target)
            if any(values_.same(there, wanted) for wanted in (value, *also)):
                # A further form may use names that this method gets in another way.
                known = value if values_.same(there, value) else "None"
                self._check_place(known, index, ahead_of, own=after)
                self._done(target, None)
            else:
                found = _line(ast.unparse(there))
                self._drift(f"no assignment to {target}, or {_line(value)}", found)
            return
        node = self._node()
        anchors = [
            index
            for index, statement in enumerate(node.body.body)
            if m.matches(statement, m.SimpleStatementLine(body=[m.Assign()]))
            and values_.stores_within(index)[after]
        ]
        if len(anchors) != 1:
            self._drift(f"one assignment to {after}", f"{len(anchors)} of them")
        self._check_place(value, anchors[0] + 1, ahead_of, own=after)
        if self._name != "__init__":
            self._check_attributes(value)
        note = f"# {comment}\n" if comment else ""
        statement = self._statement(f"{note}{target} = {value}")
        body = list(node.body.body)
        body.insert(anchors[0] + 1, statement)
        self._done(target, node.with_changes(body=node.body.with_changes(body=body)))

    def condition(
        self, guarding: Sequence[str], *, was: str, now: str, ahead_of: Sequence[str] = ()
    ) -> None:
        """The one ``if`` that assigns the names `guarding` has the condition `now`, not `was`.

        They must be None before it and assigned nowhere else, so that the condition decides.
        ahead_of: the calls that take them.
        """
        what = f"condition of {guarding[0]}"
        if self._absent(what):
            return
        node = self._node()
        values_ = self._values()
        found = [
            index
            for index, statement in enumerate(node.body.body)
            if isinstance(statement, cst.If) and values_.stores_within(index)[guarding[0]]
        ]
        if len(found) != 1:
            self._drift(f"one if that assigns {guarding[0]}", f"{len(found)} of them")
        index = found[0]
        guard = cst.ensure_type(node.body.body[index], cst.If)
        for name in guarding:
            within = values_.stores_within(index)[name]
            elsewhere = values_.stores[name] - within
            if values_.sets_otherwise(name):
                self._drift(f"{name} set by its name alone", "an attribute of that name set")
            if guard.orelse or elsewhere != 1 or not values_.is_none_before(name, index):
                sought = f"{name} None before the if that assigns {guarding[0]}, and set only there"
                self._drift(sought, f"an else, or {elsewhere} other assignments")
        self._check_place(now, index, ahead_of)
        test = code_of(guard.test)
        if values_.same(test, now):
            self._done(what, None)
        elif values_.same(test, was):
            self._check_attributes(now)
            other = values_.beyond(index, guarding)
            if other:
                self._drift(f"an if that assigns {' and '.join(guarding)} alone", other)
            new = guard.with_changes(test=self._expression(now, guard.test))
            body = [*node.body.body]
            body[index] = new
            self._done(what, node.with_changes(body=node.body.with_changes(body=body)))
        else:
            self._drift(f"if {was}", f"if {_line(test)}")

    def expect_keyword(self, call: str, name: str, value: str) -> None:
        """The one call of `call` has the keyword `name` with that very value, as the edit needs."""
        if self._owner is None:
            return
        found, _ = self._call(call)
        given = [
            code_of(arg.value) for arg in found.args if arg.keyword and arg.keyword.value == name
        ]
        if given != [value]:
            self._drift(
                f"{name}={value} in {call}", ", ".join(map(_line, given)) or "no such keyword"
            )

    def expect_handed_over(self, made: str, call: str, name: str) -> None:
        """The one call of `call` has as `name` what the one call of `made` gave, as it was."""
        if self._owner is None:
            return
        found, index = self._call(call)
        self._call(made)
        values_ = self._values()
        for arg in found.args:
            if arg.keyword and arg.keyword.value == name:
                value: ast.expr | None = values.expression(code_of(arg.value))
                if isinstance(value, ast.Name):
                    self._check_place(value.id, index)
                    value = values_.value(value.id)
                if isinstance(value, ast.Call) and ast.unparse(value.func) == made:
                    return
        self._drift(f"{name}={made}(…) in {call}", "another value, or none")

    def unwrap(self, call: str, around: str) -> None:
        """The call `around` stands in the method once, without a call of `call` around it."""
        what = f"{call}() around {around}"
        if self._absent(what):
            return
        calls = [call for call, _ in _calls(self._node())]
        found = [node for node in calls if _bare(node) == _solid(around)]
        if self._values().binds(call) or self._files.binds(self._file, call):
            self._drift(f"Python's own {call}", "another one")
        if len(found) != 1:
            self._drift(f"{around} once", f"{len(found)} of them")
        outer = [
            node
            for node in calls
            if m.matches(node.func, m.Name(call)) and _solid(around) in _bare(node)
        ]
        if not outer:
            self._done(what, None)
            return
        whole, *others = outer
        if others or len(whole.args) != 1 or whole.args[0].value is not found[0]:
            self._drift(f"{call}({around})", ", ".join(_line(code_of(node)) for node in outer))
        lpar, rpar = [*whole.lpar], [*whole.rpar]
        if "\n" in code_of(whole.with_changes(lpar=[], rpar=[])):
            # Over several lines it needs parentheses: those of the call, with the comments in them.
            argument = whole.args[0]
            comma = isinstance(argument.comma, cst.Comma) and argument.comma.whitespace_after
            lpar.append(cst.LeftParen(whitespace_after=whole.whitespace_before_args))
            rpar.insert(0, cst.RightParen(comma or argument.whitespace_after_arg))
        inner = found[0].with_changes(lpar=[*lpar, *found[0].lpar], rpar=[*found[0].rpar, *rpar])
        self._done(what, self._with(whole, inner))

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
        # Statements are told by their number, which semicolons would make another in each tree.
        if not isinstance(node.body, cst.IndentedBlock) or any(
            isinstance(line, cst.SimpleStatementLine) and len(line.body) > 1
            for line in node.body.body
        ):
            self._drift("a line for each statement", "several on one line")
        return node

    def _values(self) -> values.Method:
        try:
            found = _values_of(self._node())
        except (SyntaxError, ValueError, RecursionError) as error:
            self._drift("a method that this Python reads", f"one that it does not ({error})")
        if found.by_string:
            self._drift("names that are bound in the open", found.by_string)
        return found

    def _call(self, name: str) -> tuple[cst.Call, int]:
        """The one call of `name`, and the number of the statement of the method's body it is in."""
        node = self._node()
        called = m.Name(name) | m.Attribute(attr=m.Name(name))
        found = [at for at in _calls(node) if m.matches(at[0].func, called)]
        if len(found) != 1 or self._values().loads[name] != 1:
            self._drift(f"one call of {name}", f"{len(found)} of them, or it by another name")
        if self._values().binds(name) or self._files.binds(self._file, name) > 1:
            self._drift(f"{name} bound once, by the module", "it bound in another way")
        call, index = found[0]
        if not isinstance(node.body.body[index], cst.SimpleStatementLine):
            self._drift(f"the call of {name} outside branches", "it in a branch or inner function")
        return call, index

    def _check_place(
        self, code: str, index: int, ahead_of: Sequence[str] = (), own: str = ""
    ) -> None:
        """Drift unless `code` can stand as statement `index`, or in it.

        It is reached, each of its names has its value, and the calls of `ahead_of` come behind it.
        own: an attribute that the method itself sets.
        """
        if self._values().leaves_before(index):
            self._drift("a place that is reached", "a return before it")
        name = self._values().unbound(code, index, own)
        if name:
            self._drift(f"{name} with its value before it is used", "none, or a changed one")
        for node in ast.walk(values.expression(code)):
            if (
                isinstance(node, ast.Name)
                and not self._values().binds(node.id)
                and self._files.binds(self._file, node.id)
            ):
                self._drift(f"Python's own {node.id}", "another one")
        for call, at in _calls(self._node()):
            if at < index and code_of(call.func).rpartition(".")[2] in ahead_of:
                self._drift(f"it ahead of {code_of(call.func)}", "it behind that")

    def _check_attributes(self, code: str) -> None:
        """Drift unless every attribute of self in `code` is set by an `__init__`."""
        assert self._owner is not None
        for node in ast.walk(values.expression(code)):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "self"
                and not self._files.sets(self._file, self._owner, f"self.{node.attr}")
            ):
                self._drift(f"self.{node.attr} set by __init__", "no such attribute")

    def _inherited_store(self, target: str) -> Method | None:
        """The nearest overridden definition that assigns `target`, if each above it calls super."""
        method = self
        while method._overridden:
            if f"super().{self._name}(" not in code_of(method._node()):
                return None
            method = Method(self._files, self._name, method._overridden, inherited=True)
            if method._values().stores[target]:
                return method
        return None

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

    def _expression(self, code: str, old: cst.BaseExpression | None = None) -> cst.BaseExpression:
        """`code`, its further lines indented one level more, as an argument's are.

        old: what it takes the place of; its parentheses stay, with the comments in them.
        """
        module = self._files.module(self._file)
        text = self._native(code.replace("\n", "\n    "))
        new = cst.parse_expression(text, config=module.config_for_parsing)
        if old is None:
            return new
        return new.with_changes(lpar=[*old.lpar, *new.lpar], rpar=[*new.rpar, *old.rpar])

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
def _calls(node: cst.FunctionDef) -> tuple[tuple[cst.Call, int], ...]:
    """Each call in a method, and the number of the statement of its body that it is in."""
    return tuple(
        (part, index)
        for index, statement in enumerate(node.body.body)
        for part in _parts(statement)
        if isinstance(part, cst.Call)
    )


def _parts(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """A node and all below it, without the whitespace, which is most of a tree.

    What LibCST has for this visits every node and takes a third of a plan's time.
    """
    ahead: list[object] = [node]
    while ahead:
        part = ahead.pop()
        if isinstance(part, cst.CSTNode):
            if not isinstance(part, cst.BaseParenthesizableWhitespace | cst.TrailingWhitespace):
                yield part
                ahead.extend(getattr(part, name) for name in part.__dataclass_fields__)
        elif isinstance(part, list | tuple):
            ahead.extend(part)


@lru_cache(maxsize=64)
def _values_of(node: cst.FunctionDef) -> values.Method:
    return values.Method(code_of(node))


def code_of(node: cst.CSTNode) -> str:
    """The source of a node."""
    return cst.Module([]).code_for_node(node)


def _line(code: str) -> str:
    return " ".join(code.split())


def _solid(code: str) -> str:
    return "".join(code.split())


def _bare(node: cst.Call) -> str:
    """The source of a call without its layout and without parentheses around it."""
    return _solid(code_of(node.with_changes(lpar=[], rpar=[])))
