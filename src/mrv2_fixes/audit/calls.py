"""Who calls what in a vLLM, and the classes whose objects do."""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TypeGuard

from mrv2_fixes.audit.source import Class, Function, Module, Source, dotted


@dataclass(frozen=True, eq=False)
class CallSite:
    """A call in a function.

    target: what is called, as it is written, with the names of the function that are aliases of a
    function replaced.
    bound: the `functools.partial` calls that gave arguments before, the last one first.
    """

    function: Function
    call: ast.Call
    target: str
    bound: tuple[ast.Call, ...] = ()

    @property
    def receiver(self) -> str:
        """What stands before the last dot of the target."""
        return self.target.rpartition(".")[0]

    @property
    def name(self) -> str:
        """The last name of what is called, whatever it was imported as."""
        return self.function.module.original(self.target).rpartition(".")[2]


@dataclass(frozen=True, eq=False)
class Frame:
    """A function as it runs.

    concrete: the class of its object; None for a function, or when it is not known.
    pinned: the calls that led here, nearest first; where they end, it may be any call.
    """

    function: Function
    concrete: Class | None
    pinned: tuple[tuple[CallSite, Class | None], ...] = ()


class Calls:
    """The calls of one vLLM."""

    def __init__(self, vllm: Source) -> None:
        self._source = vllm
        self._live: dict[Class, set[Function]] = {}
        self._objects: dict[Function, list[Class | None]] = {}

    @cached_property
    def _by_name(self) -> dict[str, list[CallSite]]:
        """The calls of the vLLM, by the last name of what is called."""
        found: dict[str, list[CallSite]] = defaultdict(list)
        of_classes: dict[Class, Aliases] = defaultdict(dict)
        for function in self._source.functions():
            if function.owner is not None:
                of_classes[function.owner].update(_aliases(function, attributes=True))
        for function in self._source.functions():
            aliases = _aliases(function)
            if function.owner is not None:
                aliases.update(of_classes[function.owner])
            for call in function.calls:
                target, bound = _unaliased(call.func, aliases, function.module)
                site = CallSite(function, call, target, bound)
                found[site.name].append(site)
        return found

    def of(self, name: str) -> list[CallSite]:
        """Every call of something whose last name is `name`."""
        return self._by_name.get(name, [])

    def by_keyword(self, keyword: str) -> list[CallSite]:
        """Every call that gives something by that keyword."""
        return [
            site
            for sites in self._by_name.values()
            for site in sites
            if any(one.arg == keyword for one in site.call.keywords)
        ]

    @cached_property
    def set_from_outside(self) -> set[str]:
        """The attributes that something else than ``self``, or `setattr`, is given."""
        by_name = {
            call.args[1].value
            for call in (site.call for site in self.of("setattr"))
            if len(call.args) > 1 and isinstance(call.args[1], ast.Constant)
        }
        return {str(one) for one in by_name} | {
            attribute
            for function in self._source.functions()
            for of, attribute in function.stored
            if of != function.itself
        }

    def objects_of(self, function: Function) -> list[Class | None]:
        """The classes whose objects may run `function`, as their own method or by ``super()``."""
        if function.owner is None:
            return [None]
        if function not in self._objects:
            self._objects[function] = [
                one
                for one in self._source.derived(function.owner)
                if function in self.live(one) and not self._is_abstract(one)
            ]
        return self._objects[function]

    def _is_abstract(self, one: Class) -> bool:
        names = {name for base in self._source.bases(one) for name in base.methods}
        methods = (self._source.method(one, name) for name in names)
        return any(method is not None and method.is_abstract for method in methods)

    def live(self, one: Class) -> set[Function]:
        """The methods that an object of a class runs: the public ones, and what those call."""
        if one not in self._live:
            names = {name for base in self._source.bases(one) for name in base.methods}
            waiting = [
                self._source.method(one, name)
                for name in names
                if not name.startswith("_") or name.startswith("__") or name in self._called_outside
            ]
            found: set[Function] = set()
            while waiting:
                method = waiting.pop()
                if method is not None and method not in found:
                    found.add(method)
                    waiting += self.own_calls(method, one)
            self._live[one] = found
        return self._live[one]

    @cached_property
    def _called_outside(self) -> set[str]:
        return {
            name
            for name, sites in self._by_name.items()
            if any(site.receiver not in ("", "super()", site.function.itself) for site in sites)
        }

    def own_calls(self, method: Function, concrete: Class) -> list[Function]:
        """The methods of its own object that a method names, as what it calls or hands on."""
        found = []
        for of, name in method.read:
            if of == method.itself:
                found.append(self._source.method(concrete, name))
            elif of == "super()":
                found.append(self._source.method(concrete, name, method.owner))
        return [one for one in found if one is not None]

    def callers(
        self, function: Function, concrete: Class | None
    ) -> list[tuple[CallSite, Class | None]]:
        """Every call of a function, with the class of the object that makes it."""
        found: list[tuple[CallSite, Class | None]] = []
        for site in self.of(function.name):
            caller = site.function
            if function.owner is None:
                if self._source.resolve(caller.module, site.target) is function:
                    found += [(site, one) for one in self.objects_of(caller)]
            elif site.receiver == "super()" or (site.receiver and site.receiver == caller.itself):
                after = caller.owner if site.receiver == "super()" else None
                for one in self.objects_of(caller):
                    same = concrete is None or one is concrete
                    if same and one and self._source.method(one, function.name, after) is function:
                        found.append((site, one))
            elif site.receiver and _fits(site, function):
                resolved = self._source.resolve(caller.module, site.receiver)
                if not isinstance(resolved, Class) or resolved is function.owner:
                    found += [(site, one) for one in self.objects_of(caller)]
        return found

    def knows_batch(self, method: Function, concrete: Class, batch: set[str]) -> bool:
        """Whether a method, or one that leads to it, has one of the parameters `batch`."""
        seen: set[Function] = set()
        waiting = [method]
        while waiting:
            one = waiting.pop()
            around = [one, *(site.function for site in self.of(one.name))]
            if any(batch & set(other.parameters) for other in around):
                return True
            seen.add(one)
            waiting += [
                other
                for other in self.live(concrete)
                if other not in seen and one in self.own_calls(other, concrete)
            ]
        return False


def _fits(site: CallSite, function: Function) -> bool:
    """Whether a function takes the arguments of a call that only its name ties it to."""
    given = [site.call, *site.bound]
    keywords = {one.arg for call in given for one in call.keywords}
    count = len(site.call.args) + sum(len(call.args) - 1 for call in site.bound)
    starred = any(isinstance(one, ast.Starred) for call in given for one in call.args)
    few_enough = count <= len(function.positional) or function.node.args.vararg is not None
    known = keywords <= {*function.parameters, None} or bool(function.keywords)
    by_position = set(function.positional[:count])
    needed = {one for one in function.parameters if function.default(one) is None}
    whole = needed <= {*by_position, *keywords} or None in keywords
    return starred or (few_enough and known and whole)


Aliases = dict[str, tuple[str, tuple[ast.Call, ...]]]


def _aliases(function: Function, attributes: bool = False) -> Aliases:
    """The names that other functions are given: target, and what `functools.partial` binds."""
    found: Aliases = {}
    for target, value in function.assigned:
        name = dotted(target)
        if not name or (attributes and "." not in name):
            continue
        if _is_partial(value, function.module):
            found[name] = (dotted(value.args[0]), (value,))
        elif isinstance(value, ast.Name | ast.Attribute):
            found[name] = (dotted(value), ())
    return found


def _is_partial(node: ast.expr, module: Module) -> TypeGuard[ast.Call]:
    return (
        isinstance(node, ast.Call)
        and bool(node.args)
        and module.original(dotted(node.func)).rpartition(".")[2] == "partial"
    )


def _unaliased(
    called: ast.expr, aliases: Aliases, module: Module
) -> tuple[str, tuple[ast.Call, ...]]:
    """What is called, and what was bound before."""
    bound: tuple[ast.Call, ...] = ()
    if _is_partial(called, module):
        bound, called = (called,), called.args[0]
    target = dotted(called)
    for _ in range(4):
        if target not in aliases:
            break
        target, more = aliases[target]
        bound += more
    return target, bound
