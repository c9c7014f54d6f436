"""Whether two pieces of a method mean the same value, whatever names it goes by on the way.

``f(x=y)`` after ``y = a if c else b`` is ``f(x=a if c else b)``, and so it is when an
``if``/``else`` assigns ``y`` once in each branch. Layout and comments do not count.
"""

from __future__ import annotations

import ast
import textwrap
from collections import Counter
from collections.abc import Iterator


def expression(code: str) -> ast.expr:
    """The syntax tree of one expression."""
    return ast.parse(code.strip(), mode="eval").body


def stores(tree: ast.AST) -> Iterator[str]:
    """Every name and attribute that `tree` assigns to, as often as it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield ast.unparse(node)


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


class Method:
    """The values in one method's source.

    source: the ``def`` with its body, at any indentation.
    """

    def __init__(self, source: str) -> None:
        definition = ast.parse(textwrap.dedent(source)).body[0]
        assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
        self.stores = Counter(stores(definition))
        arguments = definition.args
        parameters = {
            a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        }
        # What is assigned once, outside loops and lone branches, is a name for its value.
        self._values: dict[str, ast.expr] = {}
        folded: Counter[str] = Counter()
        for statement in definition.body:
            for target, value in _assignments(statement).items():
                folded[target] += 2 if isinstance(statement, ast.If) else 1
                self._values[target] = value
        for target in list(self._values):
            if folded[target] != self.stores[target] or target in parameters:
                del self._values[target]

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
                if value is None or node.id in within:
                    return node
                return method._replace(value, within | {node.id})

        # A fresh tree: the transformer changes what it is given.
        copy = expression(ast.unparse(tree))
        replaced = Replace().visit(copy)
        assert isinstance(replaced, ast.expr)
        return replaced
