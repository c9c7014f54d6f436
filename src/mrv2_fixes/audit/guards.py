"""What the conditions and calls on the way of a value imply."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from mrv2_fixes.audit.flow import Guard, Names, Place, mentions
from mrv2_fixes.audit.hurt import SPECULATIVE
from mrv2_fixes.audit.source import dotted, walk
from mrv2_fixes.audit.trace import Frame, Tracer, Value

Word = Callable[[str], bool]
DEPTH = 6


def capture(name: str) -> bool:
    """Whether a name says that a CUDA graph is being captured."""
    return "captur" in name


def speculative(name: str) -> bool:
    """Whether a name is of speculative decoding, and not of what only that should fill."""
    if name in SPECULATIVE:
        return False
    return "spec" in name.replace("specific", "") or "draft" in name


def implied(guards: Iterable[Guard], word: Word, tracer: Tracer) -> bool:
    """Whether one of the conditions holds only where something named by `word` is on."""
    return any(_implies(one.test, one.holds, word, one.names, tracer, DEPTH) for one in guards)


def at_capture(value: Value, tracer: Tracer) -> bool:
    """Whether the way of a value is one of CUDA graph capture alone."""
    if implied(value.guards, capture, tracer):
        return True
    for index, (site, concrete) in enumerate(value.path):
        if capture(site.function.name):
            return True
        for parameter in filter(capture, site.function.parameters):
            name = ast.Name(parameter, ast.Load())
            frame = Frame(site.function, concrete, value.path[index + 1 :])
            values = tracer.follow(name, frame, Place({}, ()))
            if values and all(_is_on(one.node) for one in values):
                return True
    return False


def is_about_none(guards: Iterable[Guard], field: str) -> bool:
    """Whether a condition asks whether something of that name is None: it hands None on."""
    return any(
        isinstance(node, ast.Compare)
        and _is_none_test(node)
        and any(field in name for name in mentions(node.left, guard.names))
        for guard in guards
        for node in walk(guard.test)
    )


def _is_on(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _is_none_test(node: ast.Compare) -> bool:
    last = node.comparators[-1]
    return isinstance(last, ast.Constant) and last.value is None


def _implies(
    test: ast.expr, holds: bool, word: Word, names: Names, tracer: Tracer, depth: int
) -> bool:
    def implies(part: ast.expr, holds: bool = holds) -> bool:
        return _implies(part, holds, word, names, tracer, depth - 1)

    if depth == 0:
        return False
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return implies(test.operand, not holds)
    if isinstance(test, ast.BoolOp):
        every = isinstance(test.op, ast.Or) == holds
        return (all if every else any)(implies(one) for one in test.values)
    if isinstance(test, ast.Call) and dotted(test.func) in ("bool", "int", "len"):
        return any(implies(one) for one in test.args)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        on = _when_on(test.ops[0], test.comparators[0])
        return on is not None and implies(test.left, holds is on)
    name = dotted(test.func if isinstance(test, ast.Call) else test)
    if not name:
        return False
    if word(name.rpartition(".")[2]):
        return holds
    known = names.get(name) or tracer.assigned_anywhere(
        name.rpartition(".")[2] if "." in name else ""
    )
    # Where it may only be something while `word` is on, it implies that.
    something = [one for one in known if not _is_nothing(one.value)]
    return bool(something) and all(
        any(
            _implies(each.test, each.holds, word, each.names, tracer, depth - 1)
            for each in one.guards
        )
        or (
            one.value is not None and _implies(one.value, holds, word, one.names, tracer, depth - 1)
        )
        for one in something
    )


def _is_nothing(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and not node.value


def _when_on(operator: ast.cmpop, other: ast.expr) -> bool | None:
    """Whether a comparison holds where its left side is on (more than 0, not None).

    None where it says neither.
    """
    if not isinstance(other, ast.Constant):
        return None
    if other.value is None or other.value in (0, False):
        if isinstance(operator, ast.IsNot | ast.NotEq | ast.Gt):
            return True
        if isinstance(operator, ast.Is | ast.Eq | ast.LtE):
            return False
    if other.value is True and isinstance(operator, ast.Is | ast.Eq):
        return True
    if other.value == 1 and isinstance(operator, ast.GtE | ast.Lt):
        return isinstance(operator, ast.GtE)
    return None
