"""Whether two pieces of a method mean the same value, whatever names it goes by on the way.

``f(x=y)`` after ``y = a if c else b`` is ``f(x=a if c else b)``, and so it is when an
``if``/``else`` assigns ``y`` once in each branch. Layout and comments do not count.
"""

from __future__ import annotations

import ast
import builtins
import textwrap
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

# How far names are followed; what goes by more of them is not recognised.
DEPTH = 6
# What binds or reads names that no syntax tree shows.
BY_STRING = {
    *("delattr", "eval", "exec", "globals", "locals", "setattr", "vars"),
    *("__delattr__", "__dict__", "__setattr__"),
}


def expression(code: str) -> ast.expr:
    """The syntax tree of one expression, which may go over several lines."""
    return ast.parse(f"({code.strip()}\n)", mode="eval").body


def stores(tree: ast.AST) -> Iterator[str]:
    """Every name and attribute that `tree` binds or deletes, as often as it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            if not isinstance(node.ctx, ast.Load):
                yield ast.unparse(node)
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.MatchAs | ast.MatchStar | ast.ExceptHandler):
            yield node.name or ""
        elif isinstance(node, ast.MatchMapping):
            yield node.rest or ""
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


def loads(tree: ast.AST) -> Iterator[str]:
    """Every name that `tree` uses, and every attribute of self, as often as it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Load)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        ):
            yield f"self.{node.attr}"


def by_string(tree: ast.AST) -> str:
    """The first thing in `tree` that binds or reads names given as strings, or empty."""
    for node in ast.walk(tree):
        name = getattr(node, "id", None) or getattr(node, "attr", None)
        if name in BY_STRING:
            return str(name)
    return ""


_ASSIGNING = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.If, ast.Pass)


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body and of every branch in it."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If):
            yield from _statements([*statement.body, *statement.orelse])


def _root(node: ast.AST) -> str:
    """The name that a target begins with, or empty."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _assignment(statement: ast.stmt) -> tuple[str, ast.expr] | None:
    """The target and value of a plain assignment."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        return ast.unparse(statement.targets[0]), statement.value
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        return ast.unparse(statement.target), statement.value
    return None


def _assignments(statement: ast.stmt) -> dict[str, ast.expr]:
    """What a statement assigns whichever way it goes."""
    if not isinstance(statement, ast.If):
        single = _assignment(statement)
        return dict([single]) if single else {}
    branches = []
    for body in (statement.body, statement.orelse):
        branches.append(dict(filter(None, map(_assignment, body))))
    return {
        target: ast.IfExp(statement.test, value, branches[1][target])
        for target, value in branches[0].items()
        if target in branches[1]
    }


def _hands_on(node: ast.AST) -> bool:
    """Whether a value may get by `node` to where no name tells of it."""
    if isinstance(node, ast.Attribute | ast.Subscript):
        return not isinstance(node.ctx, ast.Load)
    return isinstance(node, ast.Expr) or (isinstance(node, ast.keyword) and node.arg == "out")


class Method:
    """The values in one method's source.

    source: the ``def`` with its body, at any indentation.
    """

    def __init__(self, source: str) -> None:
        definition = ast.parse(textwrap.dedent(source)).body[0]
        assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
        self._body = definition.body
        self.by_string = by_string(definition)
        self.stores = Counter(name for statement in self._body for name in stores(statement))
        self.loads = Counter(loads(definition))
        # What an object is made of is there as soon as it is set.
        self._makes = definition.name == "__init__"
        parameters = {node.arg for node in ast.walk(definition.args) if isinstance(node, ast.arg)}
        self._parameters = {name for name in parameters if not self.stores[name]}
        # What is assigned once, outside loops and lone branches, is a name for its value.
        self._values: dict[str, ast.expr] = {}
        self._index: dict[str, int] = {}
        stored: dict[str, int] = {}
        for index, statement in enumerate(self._body):
            for target, value in _assignments(statement).items():
                stored[target] = 2 if isinstance(statement, ast.If) else 1
                self._values[target] = value
                self._index[target] = index
        for target in list(self._values):
            if stored[target] != self.stores[target] or target in parameters:
                del self._values[target], self._index[target]

    def index(self, target: str) -> int:
        """The number of the statement that assigns `target`; only of those that `value` knows."""
        return self._index[target]

    def unbound(
        self, code: str, index: int, own: str = "", known: Collection[str] = frozenset()
    ) -> str:
        """The first name in `code` that may lack its value before statement `index`, or empty.

        An attribute lacks it where the method sets it, by that name or another; own: the one that
        it is the method's business to set, once and before, as it is all of an `__init__`'s.
        known: names that have their value in another way.
        """
        for node in ast.walk(expression(code)):
            if isinstance(node, ast.Attribute):
                path = ast.unparse(node)
                before = (path == own or self._makes) and self._index.get(path, index) < index
                if self.sets_otherwise(path) or (self.stores[path] and not before):
                    return path
            if not isinstance(node, ast.Name) or node.id in {*self._parameters, *known}:
                continue
            if node.id in self._index and self._index[node.id] < index:
                continue
            if hasattr(builtins, node.id) and not self.stores[node.id]:
                continue
            return node.id
        return ""

    def sets_otherwise(self, path: str) -> bool:
        """Whether an attribute of that name is set, of what may be the same by another name."""
        attribute = path.rpartition(".")[2]
        return any(
            name.rpartition(".")[2] == attribute and "." in name and name != path
            for name in self.stores
        )

    def leaves_before(self, index: int) -> bool:
        """Whether the method always ends before statement `index`."""
        return any(isinstance(node, ast.Return | ast.Raise) for node in self._body[:index])

    def may_leave(self, first: int, behind: int) -> bool:
        """Whether the method may end in the statements `first` and on, before `behind`."""
        return any(
            isinstance(node, ast.Return | ast.Raise)
            for statement in self._body[first:behind]
            for node in ast.walk(statement)
        )

    def is_none_before(self, name: str, index: int) -> bool:
        """Whether a statement before `index` says `name = None`."""
        return any(
            isinstance(node, ast.Assign | ast.AnnAssign)
            and [*stores(node)] == [name]
            and isinstance(node.value, ast.Constant)
            and node.value.value is None
            for node in self._body[:index]
        )

    def has(self, index: int, code: str) -> bool:
        """Whether the statements from number `index` on are those of `code`."""
        wanted = ast.parse(code).body
        found = self._body[index : index + len(wanted)]
        return [*map(ast.dump, found)] == [*map(ast.dump, wanted)]

    def otherwise(self, statements: Collection[str]) -> str:
        """A statement that uses the attributes of self which `statements` use, and is none of them.

        Its code, or empty. Statements with others in them are not looked at, only those in them.
        """
        wanted = [ast.parse(one).body[0] for one in statements]
        about = {name for one in wanted for name in loads(one) if name.startswith("self.")}
        for outer in self._body:
            for node in ast.walk(outer):
                if isinstance(node, ast.stmt) and not hasattr(node, "body"):
                    uses = {*loads(node), *stores(node)} & about
                    if uses and not any(ast.dump(node) == ast.dump(one) for one in wanted):
                        return ast.unparse(node)
        return ""

    def stale(self, names: Collection[str], index: int) -> str:
        """What has `names`, or what is made of them, before statement `index` and keeps it behind.

        A name that is used there, or the code of a statement that hands them on: to a call for what
        that does, to an item or an attribute. Empty when there is nothing.
        """
        made = {*names}
        behind = {used for statement in self._body[index:] for used in loads(statement)}
        for statement in self._body[:index]:
            if made.isdisjoint(loads(statement)):
                continue
            if any(_hands_on(node) for node in ast.walk(statement)):
                return ast.unparse(statement).partition("\n")[0]
            made |= {*stores(statement)}
            kept = sorted((made & behind) - {*names})
            if kept:
                return kept[0]
        return ""

    def stores_within(self, index: int) -> Counter[str]:
        """What the statement `index` binds."""
        return Counter(stores(self._body[index]))

    def binds(self, name: str) -> bool:
        """Whether `name` is a parameter or is bound in the method."""
        return name in self._parameters or self.stores[name] > 0

    def beyond(self, index: int, names: Collection[str]) -> str:
        """What the ``if`` at `index` does besides assigning `names` and what only it uses.

        One line of its code, or empty. With it left out, all else is then as it was.
        """
        guard = self._body[index]
        assert isinstance(guard, ast.If)
        elsewhere = {
            node.id
            for statement in (*self._body[:index], *self._body[index + 1 :])
            for node in ast.walk(statement)
            if isinstance(node, ast.Name)
        }
        inner = {name for name in stores(guard) if name not in elsewhere} | set(names)
        for statement in _statements(guard.body):
            if not isinstance(statement, _ASSIGNING):
                return ast.unparse(statement)
            for node in ast.walk(statement):
                changed = isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)
                if changed and _root(node) not in inner and not isinstance(node, ast.Tuple):
                    return ast.unparse(node)
        return ""

    def value(self, target: str) -> ast.expr | None:
        """What `target` is assigned, when that is one value; None otherwise."""
        return self._values.get(target)

    def same(self, one: ast.expr | str, other: ast.expr | str) -> bool:
        """Whether both expressions are the same once local names are replaced by their values."""
        return self._normal(one) == self._normal(other)

    def _normal(self, value: ast.expr | str) -> str:
        tree = expression(value) if isinstance(value, str) else value
        return ast.dump(self._replace(tree, frozenset()))

    def _replace(self, tree: ast.expr, within: frozenset[str]) -> ast.expr:
        method = self

        class Replace(ast.NodeTransformer):
            def visit_Name(self, node: ast.Name) -> ast.expr:
                value = method._values.get(node.id)
                if value is None or node.id in within or len(within) == DEPTH:
                    return node
                return method._replace(value, within | {node.id})

        # A fresh tree: the transformer changes what it is given.
        copy = expression(ast.unparse(tree))
        replaced = Replace().visit(copy)
        assert isinstance(replaced, ast.expr)
        return replaced
