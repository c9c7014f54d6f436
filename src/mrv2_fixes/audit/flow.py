"""Within one function: which assignments reach which place, and under which conditions."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from mrv2_fixes.audit.calls import Frame
from mrv2_fixes.audit.source import walk

# Name, or ``self.x`` where the function assigns it, to what it may be.
Names = dict[str, tuple["Definition", ...]]


@dataclass(frozen=True, eq=False)
class Guard:
    """A condition, whether it holds, and what its names are there.

    within: the function that it stands in.
    leaves: whether the function is left where it does not hold.
    frame: of that function, once a value is followed there.
    """

    test: ast.expr
    holds: bool
    names: Names
    within: ast.AST
    leaves: bool = False
    frame: Frame | None = None


@dataclass(frozen=True, eq=False)
class Definition:
    """An assignment. value: None when what is assigned is not one expression."""

    value: ast.expr | None
    names: Names
    guards: tuple[Guard, ...]


# The names at the end of a way, None for a dead end, and the conditions there.
Way = tuple[Names | None, tuple[Guard, ...]]


@dataclass(frozen=True, eq=False)
class Place:
    """What holds where an expression stands."""

    names: Names
    guards: tuple[Guard, ...]


@dataclass
class _Ends:
    """What the names are where a loop is broken off, or goes on early."""

    breaks: list[Way] = field(default_factory=list)
    continues: list[Way] = field(default_factory=list)

    def of(self, statement: ast.Break | ast.Continue) -> list[Way]:
        return self.breaks if isinstance(statement, ast.Break) else self.continues


class Flow:
    """What holds at each call and return of a function; nested functions run where they stand."""

    def __init__(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._function = function
        self.places: dict[ast.Call, Place] = {}
        self.returns: list[tuple[ast.expr, Place]] = []
        self.definitions: list[tuple[str, Definition]] = []
        self._loops: list[_Ends] = []
        given = [node.arg for node in walk(function.args) if isinstance(node, ast.arg)]
        # A parameter is itself, until it is assigned.
        names: Names = {one: (Definition(ast.Name(one, ast.Load()), {}, ()),) for one in given}
        self._run(function.body, names, ())

    def _run(
        self, body: Iterable[ast.stmt], names: Names, guards: tuple[Guard, ...]
    ) -> Names | None:
        """The names after `body`; None when it does not get there."""
        after: Names | None = names
        for statement in body:
            if isinstance(statement, ast.If):
                after, guards = self._branch(statement, names, guards)
            elif isinstance(statement, ast.For | ast.AsyncFor | ast.While):
                after = self._loop(statement, names, guards)
            elif isinstance(statement, ast.Try):
                after = self._try(statement, names, guards)
            elif isinstance(statement, ast.Match):
                after = self._run(_as_ifs(statement), names, guards)
            elif isinstance(statement, ast.With | ast.AsyncWith):
                for item in statement.items:
                    self._expressions(item.context_expr, names, guards)
                    if item.optional_vars is not None:
                        self._bind(item.optional_vars, None, names, guards)
                after = self._run(statement.body, names, guards)
            elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                self._define(statement, names, guards)
            elif isinstance(statement, ast.Return | ast.Raise | ast.Continue | ast.Break):
                self._expressions(statement, names, guards)
                if isinstance(statement, ast.Return) and statement.value is not None:
                    self.returns.append((statement.value, Place(dict(names), guards)))
                elif isinstance(statement, ast.Continue | ast.Break) and self._loops:
                    self._loops[-1].of(statement).append((dict(names), guards))
                return None
            elif isinstance(statement, ast.Assert):
                self._expressions(statement, names, guards)
                guard = Guard(statement.test, True, names, self._function, leaves=True)
                guards = (*guards, guard)
            else:
                self._expressions(statement, names, guards)
                self._assign(statement, names, guards)
            if after is None:
                return None
            names = after
        return names

    def _branch(
        self, statement: ast.If, names: Names, guards: tuple[Guard, ...]
    ) -> tuple[Names | None, tuple[Guard, ...]]:
        """The names after an ``if``, and the conditions from there on."""
        self._expressions(statement.test, names, guards)
        alive = []
        for holds, branch in ((True, statement.body), (False, statement.orelse)):
            guard = Guard(statement.test, holds, dict(names), self._function)
            after = self._run(branch, dict(names), (*guards, guard))
            if after is not None:
                alive.append((after, guard))
        if len(alive) == 1:  # the other branch left: from here on this one's condition holds
            return alive[0][0], (*guards, replace(alive[0][1], leaves=True))
        return _merge(_where([(after, (guard,)) for after, guard in alive])), guards

    def _loop(
        self, statement: ast.For | ast.AsyncFor | ast.While, names: Names, guards: tuple[Guard, ...]
    ) -> Names | None:
        """The names after a loop: where it ran out, or was broken off."""
        head = statement.test if isinstance(statement, ast.While) else statement.iter
        forever = isinstance(statement, ast.While) and _is_true(statement.test)
        known = len(self.definitions), len(self.returns)
        again: Names | None = names
        for _ in range(2):  # the second time with what the first has left
            del self.definitions[known[0] :], self.returns[known[1] :]
            start = _merge([names, again]) or {}
            self._expressions(head, start, guards)
            within = dict(start)
            if not isinstance(statement, ast.While):
                self._bind(statement.target, None, within, guards)
            self._loops.append(_Ends())
            last = self._run(statement.body, within, guards)
            ends = self._loops.pop()
            again = _merge(_where([(last, ()), *ends.continues]))
        if isinstance(statement, ast.While):
            out = None if forever else _merge([names, again])
        else:  # there is something that it goes through
            out = again
        if out is not None:
            out = self._run(statement.orelse, out, guards)
        after = _merge(_where([(out, ()), *ends.breaks]))
        return after if forever else after or names

    def _try(self, statement: ast.Try, names: Names, guards: tuple[Guard, ...]) -> Names | None:
        known = len(self.definitions)
        after = self._run(statement.body, dict(names), guards)
        # A handler may find every assignment of the body done, and any not.
        failed = [{**names, path: (one,)} for path, one in self.definitions[known:]]
        start = _merge([names, *failed]) or {}
        ends = [self._run(handler.body, dict(start), guards) for handler in statement.handlers]
        if after is not None:
            ends.insert(0, self._run(statement.orelse, after, guards))
        out = _merge(ends)
        ended = self._run(statement.finalbody, dict(start) if out is None else out, guards)
        return None if out is None else ended

    def _define(
        self,
        statement: ast.FunctionDef | ast.AsyncFunctionDef,
        names: Names,
        guards: tuple[Guard, ...],
    ) -> None:
        """A nested function."""
        within = dict(names)
        for node in walk(statement.args):
            if isinstance(node, ast.arg):
                within[node.arg] = (Definition(None, {}, ()),)
        returns, loops = list(self.returns), self._loops
        self._loops = []
        self._run(statement.body, within, guards)
        self.returns, self._loops = returns, loops
        for node in walk(statement):
            for name in node.names if isinstance(node, ast.Nonlocal) else ():
                self._bind(ast.Name(name, ast.Store()), None, names, guards)
        self._bind(ast.Name(statement.name, ast.Store()), None, names, guards)

    def _expressions(self, tree: ast.AST, names: Names, guards: tuple[Guard, ...]) -> None:
        """Keep what holds at the calls in a statement or expression."""
        place = None
        choices = []
        for node in walk(tree):
            if isinstance(node, ast.Call):
                place = place or Place(dict(names), guards)
                self.places[node] = place
            elif isinstance(node, ast.NamedExpr):
                self._bind(node.target, node.value, names, guards)
            elif isinstance(node, ast.IfExp):
                choices.append(node)
        for choice in choices if place else ():
            for holds, arm in ((True, choice.body), (False, choice.orelse)):
                guard = Guard(choice.test, holds, dict(names), self._function)
                for call in walk(arm):
                    if isinstance(call, ast.Call):
                        at = self.places[call]
                        self.places[call] = replace(at, guards=(*at.guards, guard))

    def _assign(self, statement: ast.stmt, names: Names, guards: tuple[Guard, ...]) -> None:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                self._bind(target, statement.value, names, guards)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            self._bind(statement.target, statement.value, names, guards)
        elif isinstance(statement, ast.AugAssign):
            before = _as_read(statement.target)
            value = ast.BinOp(before, statement.op, statement.value)
            self._bind(statement.target, ast.copy_location(value, statement), names, guards)
        elif isinstance(statement, ast.Delete):
            for target in statement.targets:
                self._bind(target, None, names, guards)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            changed = _changed_dict(statement.value)
            if changed:
                self._bind(*changed, names, guards)
            for given in [*statement.value.args, *(one.value for one in statement.value.keywords)]:
                if _is_dict(given, names):  # whoever gets it may change it
                    self._bind(given, None, names, guards)

    def _bind(
        self, target: ast.expr, value: ast.expr | None, names: Names, guards: tuple[Guard, ...]
    ) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            values: list[ast.expr | None] = [None] * len(target.elts)
            if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(values):
                values = list(value.elts)
            for one, part in zip(target.elts, values, strict=True):
                self._bind(one, part, names, guards)
        elif isinstance(target, ast.Starred):
            self._bind(target.value, None, names, guards)
        elif isinstance(target, ast.Subscript):
            # ``d["k"] = v`` is ``d = {**d, "k": v}``; other elements leave the name what it is.
            if isinstance(target.slice, ast.Constant) and isinstance(target.slice.value, str):
                whole = _as_read(target.value)
                made = _dict([(None, whole), (target.slice, value or ast.Constant(...))], target)
                self._bind(target.value, made if value else None, names, guards)
            elif _is_dict(target.value, names):
                self._bind(target.value, None, names, guards)
        elif isinstance(target, ast.Name | ast.Attribute):
            made_here = Definition(value, dict(names), guards)
            path = ast.unparse(target)
            names[path] = (made_here,)
            self.definitions.append((path, made_here))


def _where(ways: Sequence[Way]) -> list[Names | None]:
    """The names after each of several ways; what one left as it was counts where it ran."""
    alive = [names for names, _ in ways if names is not None]
    changed = {
        name
        for names in alive
        for name in names
        if any(one.get(name) is not names[name] for one in alive)
    }
    return [names and _under(names, changed, guards) for names, guards in ways]


def _under(names: Names, changed: set[str], guards: tuple[Guard, ...]) -> Names:
    held = {
        name: tuple(_held(one, guards) for one in names[name]) for name in changed & names.keys()
    }
    return {**names, **held}


def _held(one: Definition, guards: tuple[Guard, ...]) -> Definition:
    """An assignment that counts only where the conditions hold, those that it has already aside."""
    has = [each.test for each in one.guards]
    more = [each for each in guards if each.test not in has]
    return replace(one, guards=(*one.guards, *more)) if more else one


def _merge(ways: Sequence[Names | None]) -> Names | None:
    """What names may be after one of several ways; each assignment once; None for a dead end."""
    alive = [names for names in ways if names is not None]
    if len(alive) < 2:
        return alive[0] if alive else None
    merged: Names = {}
    for names in alive:
        for name, definitions in names.items():
            known = merged.get(name)
            if known is None or known is definitions:
                merged[name] = definitions
                continue
            by_value = {one.value: one for one in known}
            for one in definitions:
                same = by_value.get(one.value)
                by_value[one.value] = one if same is None else _either(same, one)
            merged[name] = tuple(by_value.values())
    return merged


def _either(one: Definition, other: Definition) -> Definition:
    """An assignment that one of two ways left as it was: the conditions that both have."""
    count = 0
    for mine, yours in zip(one.guards, other.guards, strict=False):
        if (mine.test, mine.holds) != (yours.test, yours.holds):
            break
        count += 1
    return one if count == len(one.guards) else replace(one, guards=one.guards[:count])


def _is_true(test: ast.expr) -> bool:
    return isinstance(test, ast.Constant) and bool(test.value)


def _as_ifs(match: ast.Match) -> list[ast.stmt]:
    """A ``match`` as the ``if`` and ``else`` that it stands for."""
    rest: list[ast.stmt] = []
    for case in reversed(match.cases):
        pattern = case.pattern
        # What a pattern captures is not followed.
        captured = [
            ast.Delete([ast.Name(name, ast.Del())])
            for node in walk(pattern)
            for name in (getattr(node, "name", None), getattr(node, "rest", None))
            if name
        ]
        tests = [] if _takes_all(pattern) else [_test(match.subject, pattern)]
        tests += [case.guard] if case.guard else []
        if tests:
            test = tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests)
            rest = [ast.If(test, [*captured, *case.body], rest)]
        else:
            rest = [*captured, *case.body]
    return [ast.Expr(match.subject), *rest]


def _takes_all(pattern: ast.pattern) -> bool:
    if isinstance(pattern, ast.MatchOr):
        return any(_takes_all(one) for one in pattern.patterns)
    return isinstance(pattern, ast.MatchAs) and (
        pattern.pattern is None or _takes_all(pattern.pattern)
    )


def _test(subject: ast.expr, pattern: ast.pattern) -> ast.expr:
    if isinstance(pattern, ast.MatchSingleton):
        return ast.Compare(subject, [ast.Is()], [ast.Constant(pattern.value)])
    same = pattern.value if isinstance(pattern, ast.MatchValue) else ast.Constant(ast.dump(pattern))
    return ast.Compare(subject, [ast.Eq()], [same])


def _as_read(target: ast.expr) -> ast.expr:
    """The target of an assignment, as an expression that is read."""
    return ast.parse(ast.unparse(target), mode="eval").body


def _dict(items: list[tuple[ast.expr | None, ast.expr]], where: ast.expr) -> ast.expr:
    made = ast.Dict([key for key, _ in items], [value for _, value in items])
    return ast.copy_location(made, where)


def _is_dict(node: ast.expr, names: Names) -> bool:
    """Whether a name is known as a dictionary."""
    known = names.get(node.id, ()) if isinstance(node, ast.Name) else ()
    return any(
        isinstance(one.value, ast.Dict)
        or (isinstance(one.value, ast.Call) and ast.unparse(one.value.func) == "dict")
        for one in known
    )


def _changed_dict(call: ast.Call) -> tuple[ast.expr, ast.expr | None] | None:
    """The dictionary that a statement such as ``d.update(a=1)`` changes, and what it is then."""
    if not isinstance(call.func, ast.Attribute):
        return None
    whole, arguments = call.func.value, call.args
    if call.func.attr == "update" and not any(isinstance(one, ast.Starred) for one in arguments):
        items: list[tuple[ast.expr | None, ast.expr]] = [(None, whole)]
        items += [(None, one) for one in arguments]
        for keyword in call.keywords:
            items.append((ast.Constant(keyword.arg) if keyword.arg else None, keyword.value))
        return whole, _dict(items, call)
    if call.func.attr == "setdefault" and len(arguments) == 2:
        return whole, _dict([(arguments[0], arguments[1]), (None, whole)], call)
    if call.func.attr in ("pop", "clear", "popitem"):
        return whole, None
    return None


def parts(tree: ast.AST, names: Names) -> Iterator[tuple[ast.AST, Names]]:
    """Every node of an expression, and of what its names were assigned; each assignment once."""
    seen: set[ast.expr] = set()
    waiting = [(tree, names)]
    while waiting:
        expression, within = waiting.pop()
        for node in walk(expression):
            yield node, within
            for one in within.get(node.id, ()) if isinstance(node, ast.Name) else ():
                if one.value is not None and one.value not in seen:
                    seen.add(one.value)
                    waiting.append((one.value, one.names))


def mentions(tree: ast.AST, names: Names) -> set[str]:
    """The names and attributes in an expression, and in what its names were assigned."""
    return {
        node.id if isinstance(node, ast.Name) else node.attr
        for node, _ in parts(tree, names)
        if isinstance(node, ast.Name | ast.Attribute)
    }
