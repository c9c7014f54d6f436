"""What the audit looks for: each rule is one function from a vLLM's code to findings."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from mrv2_fixes.audit import dropped, guards
from mrv2_fixes.audit.calls import Frame
from mrv2_fixes.audit.constructions import Construction
from mrv2_fixes.audit.finding import Finding, Kind, Sure
from mrv2_fixes.audit.hurt import BOUND, LONGEST, SPECULATIVE, who
from mrv2_fixes.audit.source import Class, dotted
from mrv2_fixes.audit.trace import Tracer, Value

# A function with one of these parameters knows the batch.
BATCH = {"input_batch", "scheduler_output", "num_reqs"}

# The methods of a builder.
BUILDS = ("build", "build_for_cudagraph_capture", "build_for_drafting")

Rule = Callable[[Tracer, Sequence[Construction]], Iterator[Finding]]


def bound_not_forwarded(tracer: Tracer, made: Sequence[Construction]) -> Iterator[Finding]:
    """The bound on the sequence lengths is left out, or None."""
    if not tracer.calls.by_keyword(BOUND):
        return  # from before there was one
    for construction in made:
        for value in construction.values(tracer, BOUND):
            if not (value.missing or value.is_none):
                continue
            if guards.implied(value.local_guards, guards.bound, tracer, on=False):
                continue  # it hands on that there is none
            capture = guards.at_capture(value, tracer)
            sure = Sure.LIKELY if capture or _conditional(value) else Sure.CERTAIN
            yield _finding(value, Kind.BOUND, BOUND, sure, who(BOUND, capture))


def max_seq_len_over_estimated(tracer: Tracer, made: Sequence[Construction]) -> Iterator[Finding]:
    """max_seq_len is the model's maximum while a batch runs, at once or by an attribute."""
    once: dict[tuple[Class, str], Finding] = {}
    for construction in made:
        for value in construction.values(tracer, LONGEST):
            if guards.at_capture(value, tracer):
                continue
            for over, attribute in _over_estimates(tracer, value):
                if _is_right_there(tracer, over):
                    continue
                concrete = value.frame.concrete
                if attribute and concrete:
                    own = over.frame.function.owner is concrete and over.node is not None
                    once[concrete, attribute] = Finding(
                        concrete.module.path,
                        over.node.lineno if own and over.node else concrete.node.lineno,
                        concrete.name,
                        Kind.ONCE,
                        attribute,
                        Sure.CERTAIN,
                        who(LONGEST),
                    )
                else:
                    sure = Sure.LIKELY if _conditional(over) else Sure.CERTAIN
                    yield _finding(over, Kind.OVER, LONGEST, sure, who(LONGEST))
    for (concrete, attribute), finding in once.items():
        bases = tracer.source.bases(concrete)[1:]
        if not any((base, attribute) in once for base in bases):  # said of the base already
            yield finding


def _is_right_there(tracer: Tracer, over: Value) -> bool:
    """Whether the model's maximum cuts a length, or stands for one that there is not."""
    return (
        guards.is_cut(over.guards, "max_model_len")
        or guards.implied(over.guards, guards.no_batch, tracer)
        or guards.implied(over.guards, guards.a_batch, tracer, on=False)
    )


def _over_estimates(tracer: Tracer, value: Value) -> Iterator[tuple[Value, str]]:
    """The parts of a value that are the model's maximum; the attribute that keeps it, or empty."""
    node = value.node
    if node is None or value.missing:
        return
    name = dotted(node)
    if name.rpartition(".")[2] == "max_model_len":
        yield value, ""
    elif isinstance(node, ast.Call):
        called = dotted(node.func).rpartition(".")[2]
        arguments = [_over_parts(tracer, value, one) for one in node.args]
        if called in ("min", "minimum") and arguments and all(arguments):
            yield from arguments[0]
        elif called in ("max", "maximum", "int"):
            for found in arguments:
                yield from found
    elif isinstance(node, ast.BinOp):
        yield from _over_parts(tracer, value, node.left)
        if isinstance(node.op, ast.Add | ast.Mult):
            yield from _over_parts(tracer, value, node.right)
    elif name and name.rpartition(".")[0] == value.frame.function.itself:
        attribute, concrete = name.rpartition(".")[2], value.frame.concrete
        if concrete is None or attribute in tracer.calls.set_from_outside:
            return
        assigned = tracer.assignments(attribute, concrete)
        renewed = [
            one for one in assigned if tracer.calls.knows_batch(one.frame.function, concrete, BATCH)
        ]
        for one in renewed or assigned:
            if one.node is not None:
                same = replace(one, depth=value.depth - 1, steps=value.steps)
                for over, _ in _over_parts(tracer, same, one.node):
                    yield over, "" if renewed else attribute


def _over_parts(tracer: Tracer, value: Value, node: ast.expr) -> list[tuple[Value, str]]:
    values = tracer.again(value.at(node))
    return [found for one in values for found in _over_estimates(tracer, one)]


def speculative_tensors_not_gated(
    tracer: Tracer, made: Sequence[Construction]
) -> Iterator[Finding]:
    """Tensors of speculative decoding are filled whether or not there is any."""
    for tensor in SPECULATIVE:
        for value in _given_to_builders(tracer, tensor):
            for end in _of_objects(tracer, value):
                filled = end.node is not None and not end.is_none and not end.missing
                if filled and not guards.implied(end.guards, guards.speculative, tracer):
                    yield _finding(end, Kind.SPECULATIVE, tensor, Sure.CERTAIN, who(tensor))


def _given_to_builders(tracer: Tracer, tensor: str) -> Iterator[Value]:
    """What builders get by that keyword: in the call, or from the metadata of the model's own."""
    for site in tracer.calls.by_keyword(tensor):
        if site.receiver and site.name in BUILDS:
            for concrete in tracer.calls.objects_of(site.function):
                yield from tracer.argument(site, Frame(site.function, concrete), tensor, None)
    for function in tracer.source.functions():
        if function.name == "get_extra_attn_kwargs":
            for returned, place in tracer.flow(function).returns:
                yield from tracer.entry(returned, tensor, Frame(function, function.owner), place)


def _of_objects(tracer: Tracer, value: Value) -> Iterator[Value]:
    """A value, or where it is a field of a dataclass, what those who make such objects give."""
    owner = value.frame.function.owner
    name = dotted(value.node) if value.node is not None else ""
    of, _, field = name.rpartition(".")
    if (
        owner is None
        or of != value.frame.function.itself
        or field not in tracer.source.fields(owner)
    ):
        yield value
        return
    for one in tracer.source.derived(owner):
        for site in tracer.calls.of(one.name):
            if tracer.source.resolve(site.function.module, site.target) is one:
                for concrete in tracer.calls.objects_of(site.function):
                    frame = Frame(site.function, concrete)
                    for given in tracer.argument(site, frame, field, one):
                        if not given.missing:
                            yield replace(given, guards=(*value.guards, *given.guards))


def _conditional(value: Value) -> bool:
    """Whether it is so in one branch only of the function where it stands."""
    return any(not guard.leaves for guard in value.local_guards)


def _finding(value: Value, kind: Kind, field: str, sure: Sure, why: str) -> Finding:
    function = value.frame.function
    assert value.node is not None
    return Finding(function.module.path, value.node.lineno, function.symbol, kind, field, sure, why)


RULES: tuple[Rule, ...] = (
    bound_not_forwarded,
    max_seq_len_over_estimated,
    speculative_tensors_not_gated,
    dropped.fields_dropped,
)
