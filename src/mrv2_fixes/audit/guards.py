"""What the conditions and calls on the way of a value imply."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from mrv2_fixes.audit.calls import Frame
from mrv2_fixes.audit.flow import Definition, Guard, Names, Place
from mrv2_fixes.audit.hurt import BOUND, SPECULATIVE
from mrv2_fixes.audit.source import Function, dotted
from mrv2_fixes.audit.trace import Tracer, Value

Word = Callable[[str], bool]
# How many names and calls are followed one after the other, and in all, for one condition.
DEPTH = 8
STEPS = 500
_SPECULATION = re.compile("specul|draft|spec_(decode|config|step|token)|(num|use|is|has|with)_spec")


def capture(name: str) -> bool:
    """Whether a name says that a CUDA graph is being captured."""
    return re.search("captur(?!ed)", name) is not None


def no_batch(name: str) -> bool:
    """Whether a name says that what runs is made up: a capture or a dummy."""
    return capture(name) or "dummy" in name


def a_batch(name: str) -> bool:
    """Whether a name is of what only a batch with requests has."""
    return name in ("num_reqs", "num_tokens", BOUND)


def bound(name: str) -> bool:
    """Whether a name is that of the bound."""
    return name == BOUND


def speculative(name: str) -> bool:
    """Whether a name is of speculative decoding, and not of what only that should fill."""
    return name not in SPECULATIVE and _SPECULATION.search(name) is not None


def implied(guards: Iterable[Guard], word: Word, tracer: Tracer, on: bool = True) -> bool:
    """Whether one of the conditions holds only where something named by `word` is on, or off."""
    return any(_Question(tracer, word, on).of_guard(one, one.frame, DEPTH) for one in guards)


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


def is_cut(guards: Iterable[Guard], name: str) -> bool:
    """Whether a condition compares something with `name`: it cuts a value there."""
    return any(
        isinstance(one.test, ast.Compare)
        and any(dotted(side).rpartition(".")[2] == name for side in _sides(one.test))
        for one in guards
    )


@dataclass
class _Question:
    """Whether a condition holds only where something named by `word` is on (or not `on`)."""

    tracer: Tracer
    word: Word
    on: bool
    steps: Iterator[int] = field(default_factory=lambda: iter(range(STEPS)))

    def of_guard(self, guard: Guard, frame: Frame | None, depth: int) -> bool:
        return self.of(guard.test, guard.holds, guard.names, frame, depth)

    def of(
        self, test: ast.expr, holds: bool, names: Names, frame: Frame | None, depth: int
    ) -> bool:
        """Whether that `test` is something (`holds`) or nothing implies it."""

        def of(part: ast.expr, holds: bool = holds) -> bool:
            return self.of(part, holds, names, frame, depth - 1)

        if depth == 0 or next(self.steps, None) is None:
            return False
        if isinstance(test, ast.Constant):
            return bool(test.value) is not holds  # it never comes to that
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return of(test.operand, not holds)
        if isinstance(test, ast.NamedExpr):
            return of(test.value)
        if isinstance(test, ast.IfExp):
            return (of(test.test, True) or of(test.body)) and (
                of(test.test, False) or of(test.orelse)
            )
        if isinstance(test, ast.BoolOp):
            every = isinstance(test.op, ast.Or) == holds
            return (all if every else any)(of(one) for one in test.values)
        if isinstance(test, ast.Compare):
            if len(test.ops) > 1:  # a < b < c is a < b and b < c
                sides = _sides(test)
                pairs: list[ast.expr] = [
                    ast.Compare(left, [op], [right])
                    for left, op, right in zip(sides, test.ops, sides[1:], strict=False)
                ]
                return of(ast.BoolOp(ast.And(), pairs))
            one, other, operator = _compared(test, holds)
            if isinstance(other, ast.Constant):
                on = _is_on_where(operator, other.value)
                return on is not None and of(one, on)
            member = dotted(other).rpartition(".")[2].lower()  # of an enumeration
            return self.word(member) and operator in (_SAME if self.on else _OTHER)
        if isinstance(test, ast.Call):
            called = dotted(test.func)
            if called in ("bool", "int", "len"):
                return any(of(one) for one in test.args)
            if called in ("all", "any") and isinstance(test.args[0], ast.Tuple | ast.List):
                both = ast.And() if called == "all" else ast.Or()
                return of(ast.BoolOp(both, test.args[0].elts))
            if called in ("getattr", "hasattr") and isinstance(test.args[1], ast.Constant):
                return of(ast.Attribute(test.args[0], str(test.args[1].value), ast.Load()))
        name = test.attr if isinstance(test, ast.Attribute) else dotted(test)
        if isinstance(test, ast.Call):
            name = dotted(test.func).rpartition(".")[2]
        given = self.tracer.given(frame, dotted(test)) if frame else None
        if given is not None:
            return self.of(given.value, holds, given.names, given.frame, depth - 1)
        local = names.get(test.id, ()) if isinstance(test, ast.Name) else ()
        if local and all(isinstance(one.value, ast.Constant) for one in local):
            return all(of(one.value) for one in local if one.value)
        if name and self.word(name):
            return holds is self.on
        known, within = self._known(test, names, frame)
        # What is nothing cannot have been it where the name is something.
        fitting = [one for one in known if not (holds and _is_nothing(one.value))]
        return bool(fitting) and all(
            any(self.of_guard(each, within, depth - 1) for each in one.guards)
            or (one.value is not None and self.of(one.value, holds, one.names, within, depth - 1))
            for one in fitting
        )

    def _known(
        self, test: ast.expr, names: Names, frame: Frame | None
    ) -> tuple[list[Definition], Frame | None]:
        """What a name, an attribute or a method of the own object may be."""
        name = dotted(test.func if isinstance(test, ast.Call) else test)
        receiver, _, last = name.rpartition(".")
        if name in names and not isinstance(test, ast.Call):
            return list(names[name]), frame
        if frame and frame.concrete and receiver and receiver == frame.function.itself:
            method = self.tracer.source.method(frame.concrete, last)
            if method is not None:
                return self._returned(Frame(method, frame.concrete))
        if frame and isinstance(test, ast.Call) and name:
            function = self.tracer.source.resolve(frame.function.module, name)
            if isinstance(function, Function):
                return self._returned(Frame(function, None))
        if receiver and not isinstance(test, ast.Call):
            return self.tracer.assigned_anywhere(last), None
        return [], None

    def _returned(self, frame: Frame) -> tuple[list[Definition], Frame]:
        returns = self.tracer.flow(frame.function).returns
        return [Definition(one, at.names, at.guards) for one, at in returns], frame


def _is_on(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _is_nothing(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and not node.value


def _sides(test: ast.Compare) -> list[ast.expr]:
    return [test.left, *test.comparators]


_SAME, _OTHER = (ast.Is, ast.Eq), (ast.IsNot, ast.NotEq)
_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
    ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
}
_DENIED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}


def _compared(test: ast.Compare, holds: bool) -> tuple[ast.expr, ast.expr, type[ast.cmpop]]:
    """A comparison as one that holds, with the constant on the right."""
    one, other, operator = test.left, test.comparators[0], type(test.ops[0])
    if isinstance(one, ast.Constant):
        one, other, operator = other, one, _TURNED.get(operator, operator)
    return one, other, operator if holds else _DENIED.get(operator, operator)


def _is_on_where(operator: type[ast.cmpop], value: object) -> bool | None:
    """Whether what compares so with a constant is on, that is above 0 and not None; or neither."""
    if operator in _SAME:
        return None if isinstance(value, str) else bool(value)
    if operator in _OTHER:
        return False if value is True else None if value else True
    if isinstance(value, int) and operator in (ast.Gt, ast.GtE):
        return True if value >= (operator is ast.GtE) else None
    if isinstance(value, int) and operator in (ast.Lt, ast.LtE):
        return False if value <= (operator is ast.Lt) else None
    return None
