"""What an edit can ask of one method.

Every verb is about one place and converges: what is wanted is there already, or its starting
point is there and is changed, or `Drift` says what stands there instead.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Sequence
from typing import cast

import libcst as cst

from mrv2_fixes.edit import values
from mrv2_fixes.edit.body import Body, Files
from mrv2_fixes.edit.place import Outcome, Place
from mrv2_fixes.edit.source import (
    bare,
    calls,
    code_of,
    conjunctions,
    ifs,
    is_name,
    one_line,
    parameters,
    solid,
    terms,
)


class Method:
    """A method, or the absence of one.

    definitions: file and class of the method and then of those that it overrides, nearest first;
    the class is None where it does not exist.
    inherited: it is not the class's own, so that it may be read and not changed.
    shared: a change is one for all classes that have it, and is made where the method stands.
    """

    def __init__(
        self,
        files: Files,
        name: str,
        definitions: Sequence[tuple[str, str | None]],
        *,
        inherited: bool = False,
        shared: bool = False,
    ) -> None:
        self._files = files
        self._name = name
        (self._file, self._owner), *self._overridden = definitions
        self._body = Body(files, self._file, self._owner, name) if self._owner else None
        self._inherited = inherited
        self._shared = shared

    def has_parameters(self, *names: str) -> bool:
        """Whether it has parameters of these names, as newer releases tell themselves by."""
        return self._body is not None and {*names} <= {*parameters(self._body.node)}

    def has_keyword(self, call: str, name: str, value: str) -> bool:
        """Whether its one call of `call`, in a branch or not, has the keyword `name` so."""
        if self._body is None:
            return False
        found, _ = self._body.call(call, nested=True)
        given = [arg.value for arg in found.args if arg.keyword and arg.keyword.value == name]
        return [code_of(one) for one in given] == [value]

    def fixed_otherwise(self, what: str) -> None:
        """Note that the fix is there in another form, so that nothing is to be changed."""
        self._note(what, Outcome.OTHERWISE)

    def keyword(
        self,
        call: str,
        name: str,
        *,
        now: str,
        was: str | None,
        also: Sequence[str] = (),
        before: str = "",
        nested: bool = False,
        comment: str = "",
    ) -> None:
        """The one call of `call` has the keyword `name` with the value `now`.

        was: its value at the start; None when the keyword is not there at the start.
        also: other values that serve as well, as newer releases have them.
        before: the keyword before which a new one goes. nested: the call may stand in a branch.
        comment: one line above a value that is changed.
        """
        what = f"{name} of {call}"
        body = self._there(what)
        if body is None:
            return
        found, index = body.call(call, nested=nested)
        body.check_place(now, index)
        if any(arg.keyword is None for arg in found.args):
            body.drift(f"{call} called with keywords alone", "positional or starred arguments")
        present = [arg for arg in found.args if arg.keyword and arg.keyword.value == name]
        if len(present) > 1:
            body.drift(f"keyword {name} of {call}", f"{len(present)} of them")
        if not present:
            if was is not None:
                body.drift(f"{name}={was} in {call}", "no such keyword")
            body.check_attributes(now)
            self._done(what, body.with_expression(found, _added(body, found, name, now, before)))
            return
        value = code_of(present[0].value)
        if any(body.values.same(value, wanted) for wanted in (now, *also)):
            self._done(what, None)
        elif was is not None and body.values.same(value, was):
            body.check_attributes(now)
            new = present[0].with_changes(value=body.expression(now, present[0].value))
            args = [new if arg is present[0] else arg for arg in found.args]
            changed = found.with_changes(args=args)
            if comment:
                changed = _commented(changed, args.index(new), comment)
            self._done(what, body.with_expression(found, changed))
        else:
            sought = f"{name}={was}" if was is not None else f"no keyword {name}"
            body.drift(f"{sought} in {call}", f"{name}={one_line(value)}")

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
        body = self._there(target)
        if body is None:
            return
        values_ = body.values
        if values_.sets_otherwise(target):
            body.drift(f"{target} set by that name alone", "it set by another one")
        if not values_.stores[target]:
            inherited = self._inherited_store(body, target)
            if inherited is None and self._shared and not values_.stores[after]:
                inherited = self._inherited_store(body, after)
            if inherited is not None:
                self._expect_as_inherited(body, inherited, value)
                inherited.assign(
                    target, value, after=after, ahead_of=ahead_of, also=also, comment=comment
                )
                return
        if values_.stores[target]:
            there = values_.value(target)
            if there is None:
                body.drift(
                    f"one assignment to {target}", f"{values_.stores[target]} or nested ones"
                )
            index = values_.index(target)
            if any(values_.same(there, wanted) for wanted in (value, *also)):
                # A further form may use names that this method gets in another way.
                known = value if values_.same(there, value) else "None"
                body.check_place(known, index, ahead_of, own=after)
                self._done(target, None)
            else:
                found = one_line(ast.unparse(there))
                body.drift(f"no assignment to {target}, or {one_line(value)}", found)
            return
        index = body.assignment(after) + 1
        body.check_place(value, index, ahead_of, own=after)
        if self._name != "__init__":
            body.check_attributes(value)
        note = f"# {comment}\n" if comment else ""
        self._done(target, body.with_lines(index, f"{note}{target} = {value}\n"))

    def drop(self, target: str, value: str) -> None:
        """`target` is not assigned `value` once more, which an overridden definition gives it."""
        what = f"{target} of the class it derives from"
        body = self._there(what)
        if body is None:
            return
        overridden = self._inherited_store(body, target)
        there = overridden._body.values.value(target) if overridden and overridden._body else None
        if there is None or not body.values.same(there, value):
            body.drift(f"{target} = {value} in what it overrides", "none, or another value")
        if not body.values.stores[target] and not body.values.sets_otherwise(target):
            self._done(what, None)
            return
        own = body.values.value(target)
        if own is None or not body.values.same(own, value):
            body.drift(f"{target} = {value}, or no assignment to it", "another, or several")
        self._done(what, body.without(body.values.index(target)))

    def statements(self, block: str, *, after: str, ahead_of: Sequence[str]) -> None:
        """The statements `block` stand behind the assignment to `after`, once.

        block: assignments, to names that it brings or to such as have their value by then; comments
        may stand between them. ahead_of: the calls that come behind it.
        """
        what = f"{one_line(ast.unparse(ast.parse(block).body[0]))} …"
        body = self._there(what)
        if body is None:
            return
        index = body.assignment(after, first=True) + 1
        # A name of a comprehension is one there alone.
        inner = {
            name
            for node in ast.walk(ast.parse(block))
            if isinstance(node, ast.comprehension)
            for name in values.stores(node.target)
        }
        stored = {*values.stores(ast.parse(block))} - inner
        if body.values.has(index, block):
            body.check_place("None", index, ahead_of)
            self._done(what, None)
            return
        brought = {name for name in stored if not body.values.binds(name)}
        for name in sorted(stored - brought):
            body.check_place(name, index)
        known = inner
        for statement in ast.parse(block).body:
            code = ast.unparse(cast(ast.Assign, statement).value)
            body.check_place(code, index, ahead_of, known=known)
            body.check_attributes(code)
            known = known | {*values.stores(statement)}
        stale = body.values.stale(stored, index)
        if stale:
            body.drift(f"{stale} made behind {after}", "it made before, of what is changed")
        self._done(what, body.with_lines(index, block))

    def behind_super(self, call: str, *, also: Sequence[str] = (), comment: str = "") -> None:
        """The statement `call` stands in the method; a new one behind the call of super.

        also: other statements that serve as well. comment: one line above a new one. Nothing else
        in the method may use the attribute that they are about.
        """
        what = f"{call} behind super()"
        body = self._there(what)
        if body is None:
            return
        found = [
            index
            for index, line in enumerate(body.node.body.body)
            if isinstance(line, cst.SimpleStatementLine)
            and code_of(line.body[0]).startswith(f"super().{self._name}(")
        ]
        if len(found) != 1:
            body.drift(f"one call of super().{self._name}", f"{len(found)} of them")
        index = found[0] + 1
        body.check_place(call, index)
        body.check_attributes(call)
        other = body.values.otherwise((call, *also))
        if other:
            body.drift(f"{call} and nothing else of it", other)
        numbers = range(len(body.node.body.body))
        there = [at for at in numbers if any(body.values.has(at, one) for one in (call, *also))]
        if body.values.may_leave(0, there[0] if there else index):
            body.drift(f"{call} always", "a way past it")
        note = f"# {comment}\n" if comment else ""
        self._done(what, None if there else body.with_lines(index, f"{note}{call}\n"))

    def condition(
        self, guarding: Sequence[str], *, was: str, now: str, ahead_of: Sequence[str] = ()
    ) -> None:
        """The one ``if`` that assigns the names `guarding` has the condition `now`, not `was`.

        They must be None before it and assigned nowhere else, so that the condition decides.
        ahead_of: the calls that take them.
        """
        what = f"condition of {guarding[0]}"
        body = self._there(what)
        if body is None:
            return
        node = body.node
        values_ = body.values
        found = [
            index
            for index, statement in enumerate(node.body.body)
            if isinstance(statement, cst.If) and values_.stores_within(index)[guarding[0]]
        ]
        if len(found) != 1:
            body.drift(f"one if that assigns {guarding[0]}", f"{len(found)} of them")
        index = found[0]
        guard = cst.ensure_type(node.body.body[index], cst.If)
        for name in guarding:
            within = values_.stores_within(index)[name]
            elsewhere = values_.stores[name] - within
            if values_.sets_otherwise(name):
                body.drift(f"{name} set by its name alone", "an attribute of that name set")
            if guard.orelse or elsewhere != 1 or not values_.is_none_before(name, index):
                sought = f"{name} None before the if that assigns {guarding[0]}, and set only there"
                body.drift(sought, f"an else, or {elsewhere} other assignments")
        body.check_place(now, index, ahead_of)
        test = code_of(guard.test)
        if values_.same(test, now):
            self._done(what, None)
        elif values_.same(test, was):
            body.check_attributes(now)
            other = values_.beyond(index, guarding)
            if other:
                body.drift(f"an if that assigns {' and '.join(guarding)} alone", other)
            new = guard.with_changes(test=body.expression(now, guard.test))
            self._done(what, body.with_statement(index, new))
        else:
            body.drift(f"if {was}", f"if {one_line(test)}")

    def term(self, term: str, *, behind: str, assigning: str, also: Sequence[str] = ()) -> None:
        """The one ``if``, nested or not, that asks for `behind` and more asks for `term` too.

        assigning: a name that it assigns, by which it is known. Where nothing in the file has that
        name, and nothing in the method asks for that, there is no such ``if``. also: other terms
        that serve as well, in any place.
        """
        what = f"if … {term}"
        body = self._there(what)
        if body is None:
            return
        same = body.values.same
        asking = [
            node
            for node in ifs(body.node)
            if any(same(code_of(one), behind) for one in terms(node.test))
        ]
        found = [
            node
            for node in asking
            if assigning in values.stores(ast.parse(textwrap.dedent(code_of(node))))
        ]
        if not asking and not body.values.stores[assigning]:
            if re.search(rf"\b{assigning}\b", self._files.module(self._file).code):
                body.drift(f"{assigning} here, or nowhere in the file", "it in another place")
            self._note(what, Outcome.ABSENT)
            return
        if len(found) != 1:
            body.drift(f"one if that asks for {behind}", f"{len(found)} of them")
        guard = found[0]
        there = [code_of(one) for one in terms(guard.test)]
        if any(same(one, wanted) for one in there for wanted in (term, *also)):
            self._done(what, None)
            return
        body.check_attributes(term)
        own = [path for path in values.loads(values.expression(term)) if path.startswith("self.")]
        for path in own:
            if body.values.stores[path] or body.values.sets_otherwise(path):
                body.drift(f"{path} as __init__ sets it", "another in the method")
        used = {*values.loads(ast.parse(textwrap.dedent(code_of(guard))))}
        names = [name for name in values.loads(values.expression(term)) if "self" not in name]
        missing = [name for name in names if name not in used]
        if missing:
            body.drift(f"{missing[0]} used in that if", "it not used there")
        for part in conjunctions(guard.test):
            if same(code_of(part.right), behind):
                new = part.with_changes(lpar=[], rpar=[])
                more = cst.BooleanOperation(
                    new, part.operator, body.expression(term), lpar=part.lpar, rpar=part.rpar
                )
                self._done(what, body.with_expression(part, more))
                return
        body.drift(f"{behind} behind another term", "it first")

    def statement(
        self, call: str, *, after: str, taken_by: Sequence[str], imported_from: str
    ) -> None:
        """`call` is a statement behind the one assignment to `after`, once.

        taken_by: the calls that take `after` as one argument, all of them behind.
        imported_from: the module that the file imports the function from.
        """
        function = call.partition("(")[0]
        arguments = call.removeprefix(function)
        what = f"{function} behind {after}"
        body = self._there(what)
        if body is None:
            return
        anchor = body.assignment(after)
        body.check_taken(after, taken_by)
        if body.values.loads[function]:
            found, index = body.call(function)
            statement = cst.ensure_type(body.node.body.body[index], cst.SimpleStatementLine).body[0]
            alone = isinstance(statement, cst.Expr) and statement.value is found
            if not alone or not body.values.same(code_of(found), call):
                body.drift(call, one_line(code_of(found)))
            if body.values.may_leave(anchor + 1, index):
                body.drift(f"{function} whenever {after} is assigned", "a way past it")
            body.check_place(arguments, index, taken_by)
            self._files.expect_import(self._file, function, imported_from)
            self._done(what, None)
            return
        if body.values.binds(function):
            body.drift(f"{function} of the module", "one of the method")
        body.check_place(arguments, anchor + 1, taken_by)
        body.check_attributes(arguments)
        self._files.import_(self._file, function, imported_from)
        self._done(what, body.with_lines(anchor + 1, f"{call}\n"))

    def expect_keyword(self, call: str, name: str, value: str) -> None:
        """The one call of `call` has the keyword `name` with that very value, as the edit needs."""
        body = self._body
        if body is None:
            return
        found, _ = body.call(call)
        given = [
            code_of(arg.value) for arg in found.args if arg.keyword and arg.keyword.value == name
        ]
        if given != [value]:
            body.drift(
                f"{name}={value} in {call}", ", ".join(map(one_line, given)) or "no such keyword"
            )

    def expect_handed_over(self, made: str, call: str, name: str) -> None:
        """The one call of `call` has as `name` what the one call of `made` gave, as it was."""
        body = self._body
        if body is None:
            return
        found, index = body.call(call)
        body.call(made)
        for arg in found.args:
            if arg.keyword and arg.keyword.value == name:
                value: ast.expr | None = values.expression(code_of(arg.value))
                if isinstance(value, ast.Name):
                    body.check_place(value.id, index)
                    value = body.values.value(value.id)
                if isinstance(value, ast.Call) and ast.unparse(value.func) == made:
                    return
        body.drift(f"{name}={made}(…) in {call}", "another value, or none")

    def unwrap(self, call: str, around: str) -> None:
        """The call `around` stands in the method once, without a call of `call` around it."""
        what = f"{call}() around {around}"
        body = self._there(what)
        if body is None:
            return
        present = [call for call, _ in calls(body.node)]
        found = [node for node in present if bare(node) == solid(around)]
        if body.binds(call):
            body.drift(f"Python's own {call}", "another one")
        if len(found) != 1:
            body.drift(f"{around} once", f"{len(found)} of them")
        outer = [
            node for node in present if is_name(node.func, call) and solid(around) in bare(node)
        ]
        if not outer:
            self._done(what, None)
            return
        whole, *others = outer
        if others or len(whole.args) != 1 or whole.args[0].value is not found[0]:
            body.drift(f"{call}({around})", ", ".join(one_line(code_of(node)) for node in outer))
        lpar, rpar = [*whole.lpar], [*whole.rpar]
        if "\n" in code_of(whole.with_changes(lpar=[], rpar=[])):
            # Over several lines it needs parentheses: those of the call, with the comments in them.
            argument = whole.args[0]
            comma = isinstance(argument.comma, cst.Comma) and argument.comma.whitespace_after
            lpar.append(cst.LeftParen(whitespace_after=whole.whitespace_before_args))
            rpar.insert(0, cst.RightParen(comma or argument.whitespace_after_arg))
        inner = found[0].with_changes(lpar=[*lpar, *found[0].lpar], rpar=[*found[0].rpar, *rpar])
        self._done(what, body.with_expression(whole, inner))

    # What the verbs share.

    def _there(self, what: str) -> Body | None:
        """The body; None, and a note of it, where the method does not exist."""
        if self._body is None:
            self._note(what, Outcome.ABSENT)
        return self._body

    def _done(self, what: str, changed: cst.FunctionDef | None) -> None:
        """Note the outcome, and put the changed method in its place."""
        if changed is not None:
            assert self._body is not None
            if self._inherited:
                found = f"it inherited from {self._owner}"
                self._body.drift(f"{self._name} in the class itself", found)
            self._body.replace(changed)
        self._note(what, Outcome.PRESENT if changed is None else Outcome.CHANGED)

    def _note(self, what: str, outcome: Outcome) -> None:
        symbol = f"{self._owner}.{self._name}" if self._owner else self._name
        self._files.places.append(Place(self._file, symbol, what, outcome))

    def _expect_as_inherited(self, body: Body, inherited: Method, value: str) -> None:
        """Drift unless the attributes in `value` stay what the overridden definition sets."""
        assert inherited._body is not None
        for path in values.loads(values.expression(value)):
            own, there = body.values.value(path), inherited._body.values.value(path)
            again = own is not None and there is not None and body.values.same(own, there)
            if "." in path and body.values.stores[path] and not again:
                body.drift(f"{path} as the class it derives from sets it", "another value set")

    def _inherited_store(self, body: Body, target: str) -> Method | None:
        """The nearest overridden definition that assigns `target`, if each above it calls super."""
        overridden = self._overridden
        while overridden:
            if f"super().{self._name}(" not in code_of(body.node):
                return None
            method = Method(
                self._files,
                self._name,
                overridden,
                inherited=not self._shared,
                shared=self._shared,
            )
            assert method._body is not None
            body, overridden = method._body, method._overridden
            if body.values.stores[target]:
                return method
        return None


def _added(body: Body, call: cst.Call, name: str, value: str, before: str) -> cst.Call:
    """`call` with one more keyword, laid out as its neighbours are."""
    index = next(
        (i for i, arg in enumerate(call.args) if arg.keyword and arg.keyword.value == before),
        None,
    )
    if index is None:
        body.drift(f"keyword {before} of the call", "no such keyword")
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
        value=body.expression(value),
        equal=neighbour.equal,
        comma=cst.Comma(whitespace_after=space),
    )
    return call.with_changes(args=[*call.args[:index], new, *call.args[index:]])


def _commented(call: cst.Call, index: int, comment: str) -> cst.Call:
    """`call` with a comment above its argument `index`, where that has a line of its own."""
    comma = call.args[index - 1].comma if index else None
    owner = comma if isinstance(comma, cst.Comma) else None
    space = owner.whitespace_after if owner else call.whitespace_before_args
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return call
    line = cst.EmptyLine(
        indent=space.indent, whitespace=space.last_line, comment=cst.Comment(f"# {comment}")
    )
    space = space.with_changes(empty_lines=[*space.empty_lines, line])
    if owner is None:
        return call.with_changes(whitespace_before_args=space)
    before = call.args[index - 1].with_changes(comma=owner.with_changes(whitespace_after=space))
    return call.with_changes(args=[*call.args[: index - 1], before, *call.args[index:]])
