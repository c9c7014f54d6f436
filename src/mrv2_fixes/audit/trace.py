"""Following a value to where it comes from: through names, parameters, attributes, dictionaries.

A value is followed as long as it stays the same value, or a slice of it. What is not followed to
its end is said to be unknown, and no rule speaks of what is unknown.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from mrv2_fixes.audit import flow, source
from mrv2_fixes.audit.calls import Calls, CallSite, Frame
from mrv2_fixes.audit.flow import Definition, Flow, Guard, Place
from mrv2_fixes.audit.source import Class, Function, Source

# What these names mean is plain; where they come from says no more.
PLAIN = ("max_model_len",)
# How many calls, names and branches are followed one after the other, and in all, for one
# question. In no release it takes a tenth of either; what is beyond is unknown.
DEPTH = 60
STEPS = 1000


@dataclass(frozen=True, eq=False)
class Value:
    """What a value is at the end of the way.

    node: the expression; None when it is unknown. Where it is missing, the call that leaves it out.
    frame, names: where the expression stands.
    guards: the conditions on the way.
    path: the calls on the way, the nearest to its use first.
    missing: whether a call leaves the parameter out, and its default, None, is what counts.
    entered: how many calls were followed inwards, to what they return, and not out again.
    depth, steps: how far it may be followed yet, and how far all that the same question comes to.
    """

    node: ast.expr | None
    frame: Frame
    names: flow.Names
    guards: tuple[Guard, ...] = ()
    path: tuple[tuple[CallSite, Class | None], ...] = ()
    missing: bool = False
    entered: int = 0
    depth: int = DEPTH
    steps: Iterator[int] = field(default_factory=lambda: iter(range(STEPS)))

    def at(self, node: ast.expr | None, *more: Guard) -> Value:
        """The same question, one step on: what `node` is, where `more` holds too."""
        return replace(self, node=node, guards=(*self.guards, *more), depth=self.depth - 1)

    def assigned(self, one: Definition) -> Value:
        """The same question, one step on: what was assigned."""
        return replace(self.at(one.value, *one.guards), names=one.names)

    @property
    def is_too_far(self) -> bool:
        """Whether to stop here; each time that this is asked is a step."""
        return self.depth <= 0 or next(self.steps, None) is None

    def __post_init__(self) -> None:
        held = [one if one.frame else replace(one, frame=self.frame) for one in self.guards]
        object.__setattr__(self, "guards", tuple(held))

    @property
    def is_none(self) -> bool:
        return isinstance(self.node, ast.Constant) and self.node.value is None

    @property
    def local_guards(self) -> list[Guard]:
        """The conditions in the function where the expression stands."""
        function = self.frame.function.node
        return [guard for guard in self.guards if guard.within is function]

    @property
    def possible(self) -> bool:
        """Whether no condition on the way contradicts another."""
        held: dict[object, bool] = {}
        for guard in self.guards:
            test, holds = guard.test, guard.holds
            while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
                test, holds = test.operand, not holds
            used = [node.id for node in source.walk(test) if isinstance(node, ast.Name)]
            # The same words say the same only where their names are what they were.
            said = (guard.within, ast.dump(test), *(guard.names.get(name) for name in used))
            if held.setdefault(said, holds) != holds:
                return False
        return True


@dataclass(frozen=True, eq=False)
class Given:
    """An argument, where its call stands."""

    value: ast.expr
    names: flow.Names
    frame: Frame


class Tracer:
    """Follows the values of one vLLM."""

    def __init__(self, vllm: Source) -> None:
        self.source = vllm
        self.calls = Calls(vllm)
        self._flows: dict[Function, Flow] = {}
        self._assigned: dict[str, list[Definition]] = {}

    def flow(self, function: Function) -> Flow:
        """What holds where in a function."""
        if function not in self._flows:
            self._flows[function] = Flow(function.node)
        return self._flows[function]

    def argument(
        self, site: CallSite, frame: Frame, parameter: str, callee: Function | Class | None
    ) -> list[Value]:
        """What a call gives for a parameter.

        callee: a class has its fields as parameters; None for what is given by keyword alone.
        """
        here = self._here(site, frame)
        return _possible(self._argument(here, parameter, callee)) if here else []

    def follow(self, node: ast.expr, frame: Frame, place: Place) -> list[Value]:
        """Where an expression in the function of `frame` comes from."""
        return self.again(Value(node, frame, place.names, place.guards))

    def entry(self, whole: ast.expr, key: str, frame: Frame, place: Place) -> list[Value]:
        """What a dictionary in the function of `frame` holds under `key`."""
        values = self._entry(Value(whole, frame, place.names, place.guards), key)
        return [one for one in _possible(values) if not one.missing]

    def again(self, value: Value) -> list[Value]:
        """Where a value comes from whose expression was taken out of a larger one."""
        return _possible(self._follow(value))

    def _here(self, site: CallSite, frame: Frame) -> Value | None:
        """Where a call stands; None where it is not known."""
        place = self.flow(site.function).places.get(site.call)
        path = ((site, frame.concrete),)
        return Value(None, frame, place.names, place.guards, path) if place else None

    def _follow(self, value: Value) -> Iterator[Value]:
        node = value.node
        if node is None or value.is_too_far:
            yield replace(value, node=None)
        elif source.dotted(node).rpartition(".")[2] in PLAIN:
            yield value
        elif isinstance(node, ast.Name | ast.Attribute) and source.dotted(node) in value.names:
            for one in value.names[source.dotted(node)]:
                yield from self._follow(value.assigned(one))
        elif isinstance(node, ast.Name) and node.id in value.frame.function.parameters:
            yield from self._parameter(value, node.id)
        elif isinstance(node, ast.IfExp):
            for branch in _branches(value, node):
                yield from self._follow(branch)
        elif isinstance(node, ast.BoolOp):
            *earlier, last = node.values
            guards = [Guard(part, True, value.names, value.frame.function.node) for part in earlier]
            if isinstance(node.op, ast.Or):  # an earlier one counts only where it is something
                for guard in guards:
                    yield from self._follow(value.at(guard.test, guard))
                guards = []
            yield from self._follow(value.at(last, *guards))
        elif isinstance(node, ast.NamedExpr) or (
            isinstance(node, ast.Subscript) and _is_slice(node.slice)
        ):
            yield from self._follow(value.at(node.value))
        elif isinstance(node, ast.Call) and (returned := self._returned(value, node)):
            for inside in returned:
                yield from self._follow(inside)
        else:
            yield value

    def _returned(self, value: Value, call: ast.Call) -> list[Value]:
        """What a call of a function of this vLLM returns; empty for any other call."""
        name = source.dotted(call.func)
        if name in ("cast", "typing.cast"):
            return [value.at(call.args[-1])]
        frame, callee = value.frame, None
        concrete: Class | None = None
        receiver, _, last = name.rpartition(".")
        if receiver and receiver == frame.function.itself and frame.concrete:
            callee, concrete = self.source.method(frame.concrete, last), frame.concrete
        elif name:
            resolved = self.source.resolve(frame.function.module, name)
            callee = resolved if isinstance(resolved, Function) else None
        if callee is None:
            return []
        site = CallSite(frame.function, call, name)
        inner = Frame(callee, concrete, ((site, frame.concrete), *frame.pinned))
        return [
            replace(
                value.at(node),
                frame=inner,
                names=place.names,
                guards=(*value.guards, *place.guards),
                entered=value.entered + 1,
            )
            for node, place in self.flow(callee).returns
        ]

    def _parameter(self, value: Value, name: str) -> Iterator[Value]:
        function = value.frame.function
        for site, outer in self._callers(value):
            here = self._here(site, outer)
            if here is None or any(site is one for one, _ in value.path):
                continue
            here = replace(here, depth=value.depth - 1, steps=value.steps)
            for given in self._argument(here, name, function):
                out = given.path[1:] if value.entered else given.path
                yield replace(
                    given,
                    guards=(*value.guards, *given.guards),
                    path=(*value.path, *out),
                    entered=max(value.entered - 1, 0),
                )

    def given(self, frame: Frame, parameter: str) -> Given | None:
        """What the call that leads to a frame gives for a parameter; None if that is not known."""
        function = frame.function
        if not frame.pinned or parameter not in function.parameters:
            return None
        site, concrete = frame.pinned[0]
        given = {one.arg: one.value for one in site.call.keywords}
        given.update(zip(function.positional, site.call.args, strict=False))
        node = given.get(parameter, None if None in given else function.default(parameter))
        place = self.flow(site.function).places.get(site.call)
        if node is None or place is None:
            return None
        return Given(node, place.names, Frame(site.function, concrete, frame.pinned[1:]))

    def _callers(self, value: Value) -> list[tuple[CallSite, Frame]]:
        """The calls that may have led to the frame of a value, each with its own frame."""
        frame = value.frame
        if frame.pinned:
            site, concrete = frame.pinned[0]
            return [(site, Frame(site.function, concrete, frame.pinned[1:]))]
        return [
            (site, Frame(site.function, concrete))
            for site, concrete in self.calls.callers(frame.function, frame.concrete)
        ]

    def _argument(
        self, here: Value, parameter: str, callee: Function | Class | None
    ) -> Iterator[Value]:
        """What the call on the path of `here` gives for a parameter."""
        site = here.path[0][0]
        given = [site.call, *site.bound]
        for call in given:
            for keyword in call.keywords:
                if keyword.arg == parameter:
                    yield from self._follow(here.at(keyword.value))
                    return
        positional = [one for call in reversed(site.bound) for one in call.args[1:]]
        positional += site.call.args
        if any(isinstance(one, ast.Starred) for one in positional) or (
            callee is None and positional
        ):
            yield here
            return
        order = callee.positional if isinstance(callee, Function) else self.source.fields(callee)
        if parameter in order:
            index = order.index(parameter)
            if index < len(positional):
                yield from self._follow(here.at(positional[index]))
                return
        absent = [here]
        for whole in (one.value for call in given for one in call.keywords if one.arg is None):
            without: list[Value] = []
            for value in self._entry(here.at(whole), parameter):
                if value.missing:
                    # What a helper's dictionary has not is left out by the call here.
                    own = len(value.path) == len(here.path)
                    without.append(replace(here, guards=value.guards) if own else value)
                else:
                    yield value
            if not without:
                return
            absent = without
        default: ast.expr | None = ast.Constant(None)
        if isinstance(callee, Function) and parameter in callee.parameters:
            default = callee.default(parameter)
        for one in absent:
            if default is None:
                yield replace(one, node=None, missing=False)
            elif isinstance(default, ast.Constant) and default.value is None:
                yield replace(one, node=one.path[-1][0].call, missing=True)
            else:
                yield replace(one, node=default, names={}, missing=False)

    def _entry(self, whole: Value, key: str) -> Iterator[Value]:
        """What a dictionary holds under `key`; a missing value where it holds nothing."""
        node = whole.node
        if node is None or whole.is_too_far:
            yield replace(whole, node=None)
        elif isinstance(node, ast.Dict):
            for name, part in reversed(list(zip(node.keys, node.values, strict=True))):
                if name is None:
                    inner = list(self._entry(whole.at(part), key))
                    yield from (one for one in inner if not one.missing)
                    if not any(one.missing for one in inner):
                        return
                elif not isinstance(name, ast.Constant):
                    yield replace(whole, node=None)
                    return
                elif name.value == key:
                    yield from self._follow(whole.at(part))
                    return
            yield replace(whole, missing=True)
        elif isinstance(node, ast.Call) and source.dotted(node.func) == "dict":
            items: list[tuple[ast.expr | None, ast.expr]] = [(None, one) for one in node.args]
            for keyword in node.keywords:
                name = ast.Constant(keyword.arg) if keyword.arg else None
                items.append((name, keyword.value))
            made = ast.Dict([name for name, _ in items], [value for _, value in items])
            yield from self._entry(whole.at(made), key)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            yield from self._entry(whole.at(ast.Dict([None, None], [node.left, node.right])), key)
        elif isinstance(node, ast.Name) and node.id in whole.names:
            for one in whole.names[node.id]:
                yield from self._entry(whole.assigned(one), key)
        elif isinstance(node, ast.Name) and node.id == whole.frame.function.keywords:
            yield from self._parameter(whole, key)
        elif isinstance(node, ast.IfExp):
            for branch in _branches(whole, node):
                yield from self._entry(branch, key)
        elif isinstance(node, ast.Call) and (returned := self._returned(whole, node)):
            for value in returned:
                yield from self._entry(value, key)
        else:
            yield replace(whole, node=None)

    def assignments(self, attribute: str, concrete: Class) -> list[Value]:
        """What the methods that an object of a class runs assign to one of its attributes."""
        found = []
        for method in sorted(
            self.calls.live(concrete), key=lambda one: (one.symbol, one.node.lineno)
        ):
            if (method.itself, attribute) in method.stored:
                for path, one in self.flow(method).definitions:
                    if path == f"{method.itself}.{attribute}":
                        frame = Frame(method, concrete)
                        found.append(Value(one.value, frame, one.names, one.guards))
        return found

    def assigned_anywhere(self, attribute: str) -> list[Definition]:
        """What any method of any class assigns to that attribute of its object."""
        if attribute not in self._assigned:
            self._assigned[attribute] = [
                one
                for function in self.source.functions()
                if function.itself and (function.itself, attribute) in function.stored
                for path, one in self.flow(function).definitions
                if path == f"{function.itself}.{attribute}"
            ]
        return self._assigned[attribute]


def _possible(values: Iterable[Value]) -> list[Value]:
    return [one for one in values if one.possible]


def _branches(value: Value, node: ast.IfExp) -> Iterator[Value]:
    for holds, branch in ((True, node.body), (False, node.orelse)):
        yield value.at(branch, Guard(node.test, holds, value.names, value.frame.function.node))


def _is_slice(index: ast.expr) -> bool:
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return all(isinstance(part, ast.Slice) for part in parts)
