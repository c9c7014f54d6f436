"""What a piece of LibCST's tree says: its text, the calls in it, the names that it binds."""

from __future__ import annotations

import ast
import textwrap
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

import libcst as cst

from mrv2_fixes.edit import values

# What leaves a function what it is.
DECORATORS = ("abstractmethod", "torch.inference_mode()", "torch.no_grad()")


def code_of(node: cst.CSTNode) -> str:
    """The source of a node."""
    return cst.Module([]).code_for_node(node)


def one_line(code: str) -> str:
    """`code` for a message."""
    return " ".join(code.split())


def solid(code: str) -> str:
    """`code` without its layout."""
    return "".join(code.split())


def bare(node: cst.Call) -> str:
    """The source of a call without its layout and without parentheses around it."""
    return solid(code_of(node.with_changes(lpar=[], rpar=[])))


def is_name(node: cst.CSTNode, name: str) -> bool:
    """Whether a node is the name `name`, and no more."""
    return isinstance(node, cst.Name) and node.value == name


def ends_in(node: cst.BaseExpression, name: str) -> bool:
    """Whether what is called is `name`, by itself, in full, or as an attribute of anything."""
    last = node.attr if isinstance(node, cst.Attribute) else node
    return is_name(last, name) or code_of(node) == name


# Each is asked for many times of the same tree, and costs a walk over it.
@lru_cache(maxsize=64)
def calls(node: cst.FunctionDef) -> tuple[tuple[cst.Call, int], ...]:
    """Each call in a function, and the number of the statement of its body that it is in."""
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


def parameters(node: cst.FunctionDef) -> list[str]:
    """The names of a function's parameters, but for those with stars."""
    of = node.params
    return [one.name.value for one in (*of.posonly_params, *of.params, *of.kwonly_params)]


def ifs(node: cst.FunctionDef) -> list[cst.If]:
    """Each ``if`` in a function, however deep."""
    return [part for part in _parts(node) if isinstance(part, cst.If)]


def conjunctions(test: cst.BaseExpression) -> Iterator[cst.BooleanOperation]:
    """Each ``and`` of the chain of them that a condition is, the last one first."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        yield test
        yield from conjunctions(test.left)


def terms(test: cst.BaseExpression) -> list[cst.BaseExpression]:
    """What must hold, each for itself, for a condition to hold."""
    chain = [*conjunctions(test)]
    return [chain[-1].left, *(one.right for one in chain)] if chain else [test]


@lru_cache(maxsize=64)
def values_of(node: cst.FunctionDef) -> values.Method:
    """The values in a function. Raises SyntaxError, ValueError or RecursionError."""
    return values.Method(code_of(node))


@lru_cache(maxsize=1024)
def names(line: cst.CSTNode) -> tuple[Counter[str], frozenset[str], bool]:
    """What a statement binds, what it uses, and whether it does either by strings."""
    tree = ast.parse(textwrap.dedent(code_of(line)))
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return Counter(values.stores(tree)), frozenset(used), bool(values.by_string(tree))


def times(line: cst.CSTNode, name: str) -> int:
    """How often a statement binds `name`."""
    if isinstance(line, cst.FunctionDef | cst.ClassDef):
        return line.name.value == name
    bound, _, _ = names(line)
    return bound[name] + bound["*"]


@lru_cache(maxsize=256)
def classes(module: cst.Module, name: str) -> tuple[list[cst.ClassDef], bool]:
    """The classes of that name at the top level, and whether another one hides in a branch."""
    found = [n for n in module.body if isinstance(n, cst.ClassDef) and n.name.value == name]
    return found, any(_hidden(line, name, cst.ClassDef) for line in module.body)


@lru_cache(maxsize=256)
def functions(within: cst.Module | cst.ClassDef, name: str) -> tuple[list[cst.FunctionDef], bool]:
    """The same for the functions of a module, or the methods of a class."""
    body = within.body if isinstance(within, cst.Module) else within.body.body
    found = [n for n in body if isinstance(n, cst.FunctionDef) and n.name.value == name]
    return found, any(_hidden(line, name, cst.FunctionDef) for line in body)


def _hidden(line: cst.CSTNode, name: str, kind: type[cst.CSTNode]) -> bool:
    """Whether a statement that is no definition of that kind binds `name`, or may change it."""
    if isinstance(line, cst.FunctionDef | cst.ClassDef):
        return line.name.value == name and not isinstance(line, kind)
    bound, used, by_string = names(line)
    return by_string or name in bound or "*" in bound or name in used


@lru_cache(maxsize=64)
def sets_out_of_sight(module: cst.Module, name: str) -> str:
    """What in a module may set its global `name` by a string or as an attribute, or empty."""
    tree = ast.parse(module.bytes)
    as_attribute = (path for path in values.stores(tree) if path.endswith(f".{name}"))
    return values.by_string(tree) or next(as_attribute, "")
