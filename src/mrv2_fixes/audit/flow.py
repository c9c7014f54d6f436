"""Within one function: which assignments reach which place, and under which conditions."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from mrv2_fixes.audit.source import walk

# Name, or ``self.x`` where the function assigns it, to what it may be.
Names = dict[str, tuple["Definition", ...]]


@dataclass(frozen=True, eq=False)
class Guard:
    """A condition, whether it holds, and what its names are there.

    within: the function that it stands in.
    leaves: whether the function is left where it does not hold.
    """

    test: ast.expr
    holds: bool
    names: Names
    within: ast.AST
    leaves: bool = False


@dataclass(frozen=True, eq=False)
class Definition:
    """An assignment. value: None when what is assigned is not one expression."""

    value: ast.expr | None
    names: Names
    guards: tuple[Guard, ...]


@dataclass(frozen=True, eq=False)
class Place:
    """What holds where an expression stands."""

    names: Names
    guards: tuple[Guard, ...]


class Flow:
    """What holds at each call and return of a function; nested functions run where they stand."""

    def __init__(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._function = function
        self.places: dict[ast.Call, Place] = {}
        self.returns: list[tuple[ast.expr, Place]] = []
        self.definitions: list[tuple[str, Definition]] = []
        given = [node.arg for node in walk(function.args) if isinstance(node, ast.arg)]
        # A parameter is itself, until it is assigned.
        names: Names = {one: (Definition(ast.Name(one, ast.Load()), {}, ()),) for one in given}
        self._run(function.body, names, ())

    def _run(
        self, body: Iterable[ast.stmt], names: Names, guards: tuple[Guard, ...]
    ) -> Names | None:
        """The names after `body`; None when it does not get there."""
        for statement in body:
            if isinstance(statement, ast.If):
                self._expressions(statement.test, names, guards)
                branches = []
                for held, branch in ((True, statement.body), (False, statement.orelse)):
                    guard = Guard(statement.test, held, names, self._function)
                    branches.append((self._run(branch, dict(names), (*guards, guard)), guard))
                alive = [(after, guard) for after, guard in branches if after is not None]
                if not alive:
                    return None
                if (
                    len(alive) == 1
                ):  # the other branch left: from here on this one's condition holds
                    guards = (*guards, replace(alive[0][1], leaves=True))
                names = _merge(_where(alive))
            elif isinstance(statement, ast.For | ast.AsyncFor | ast.While):
                within = dict(names)
                if isinstance(statement, ast.While):
                    self._expressions(statement.test, names, guards)
                else:
                    self._expressions(statement.iter, names, guards)
                    self._bind(statement.target, None, within, guards)
                after = self._run(statement.body, within, guards)
                names = _merge([names, *([after] if after is not None else [])])
                names = self._run(statement.orelse, names, guards) or names
            elif isinstance(statement, ast.Try):
                after = self._run(statement.body, dict(names), guards)
                ends = [self._run(statement.orelse, after, guards)] if after is not None else []
                start = _merge([names, *([after] if after is not None else [])])
                for handler in statement.handlers:
                    ends.append(self._run(handler.body, dict(start), guards))
                alive_ends = [end for end in ends if end is not None]
                ended = self._run(statement.finalbody, _merge(alive_ends or [start]), guards)
                if ended is None or not alive_ends:
                    return None
                names = ended
            elif isinstance(statement, ast.With | ast.AsyncWith):
                for item in statement.items:
                    self._expressions(item.context_expr, names, guards)
                    if item.optional_vars is not None:
                        self._bind(item.optional_vars, None, names, guards)
                inner = self._run(statement.body, names, guards)
                if inner is None:
                    return None
                names = inner
            elif isinstance(statement, ast.Match):
                self._expressions(statement.subject, names, guards)
                cases = [self._run(case.body, dict(names), guards) for case in statement.cases]
                names = _merge([names, *(case for case in cases if case is not None)])
            elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                inner_names = dict(names)
                for node in walk(statement.args):
                    if isinstance(node, ast.arg):
                        inner_names[node.arg] = (Definition(None, {}, ()),)
                returns = list(self.returns)
                self._run(statement.body, inner_names, guards)
                self.returns = returns
                self._bind(ast.Name(statement.name, ast.Store()), None, names, guards)
            elif isinstance(statement, ast.Return):
                if statement.value is not None:
                    self._expressions(statement.value, names, guards)
                    self.returns.append((statement.value, Place(dict(names), guards)))
                return None
            elif isinstance(statement, ast.Raise | ast.Continue | ast.Break):
                self._expressions(statement, names, guards)
                return None
            else:
                self._expressions(statement, names, guards)
                self._assign(statement, names, guards)
        return names

    def _expressions(self, tree: ast.AST, names: Names, guards: tuple[Guard, ...]) -> None:
        """Keep what holds at the calls in a statement or expression."""
        place = None
        for node in walk(tree):
            if isinstance(node, ast.Call):
                place = place or Place(dict(names), guards)
                self.places[node] = place
            elif isinstance(node, ast.NamedExpr):
                self._bind(node.target, node.value, names, guards)

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
        elif isinstance(target, ast.Name | ast.Attribute):
            made_here = Definition(value, dict(names), guards)
            path = ast.unparse(target)
            names[path] = (made_here,)
            self.definitions.append((path, made_here))


def _where(branches: list[tuple[Names, Guard]]) -> list[Names]:
    """The names after each of two branches; what one left as it was counts where it ran."""
    if len(branches) == 1:
        return [branches[0][0]]
    (one, _), (other, _) = branches
    changed = {name for name in one.keys() & other.keys() if one[name] is not other[name]}
    guarded = []
    for names, guard in branches:
        own = dict(names)
        for name in changed:
            own[name] = tuple(
                definition
                if any(each.test is guard.test for each in definition.guards)
                else replace(definition, guards=(*definition.guards, guard))
                for definition in names[name]
            )
        guarded.append(own)
    return guarded


def _merge(branches: list[Names]) -> Names:
    """What names may be after one of several ways; each assignment once."""
    if len(branches) == 1:
        return branches[0]
    merged: Names = {}
    for names in branches:
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
        if mine is not yours:
            break
        count += 1
    return one if count == len(one.guards) else replace(one, guards=one.guards[:count])


def _as_read(target: ast.expr) -> ast.expr:
    """The target of an assignment, as an expression that is read."""
    return ast.parse(ast.unparse(target), mode="eval").body


def _dict(items: list[tuple[ast.expr | None, ast.expr]], where: ast.expr) -> ast.expr:
    made = ast.Dict([key for key, _ in items], [value for _, value in items])
    return ast.copy_location(made, where)


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
