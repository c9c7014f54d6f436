"""Fields that a method leaves out of the metadata, though its siblings forward them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from mrv2_fixes.audit import guards
from mrv2_fixes.audit.calls import CallSite, Frame
from mrv2_fixes.audit.constructions import Construction
from mrv2_fixes.audit.finding import Finding, Kind, Sure
from mrv2_fixes.audit.flow import parts
from mrv2_fixes.audit.hurt import BOUND, who
from mrv2_fixes.audit.source import Class, Function, dotted, walk
from mrv2_fixes.audit.trace import Tracer

# The parameter that brings what only one kind of model has, and the method that says what.
OWN, EXTRA = "model_specific_attn_metadata", "get_extra_common_attn_kwargs"
# Only sparse MLA reads these, with prefill spread over ranks; no model state of such a model is but
# the default one, or derives from it.
OF_MLA = {"dcp_local_seq_lens_cpu_upper_bound", "req_idx"}


def fields_dropped(tracer: Tracer, made: Sequence[Construction]) -> Iterator[Finding]:
    """What the same method of another class forwards, and this one leaves out though it has it."""
    for maker in dict.fromkeys(one.site.function for one in made):
        # The calls by the method's name and what its classes derive from, each once.
        siblings: dict[tuple[str, Class], dict[ast.Call, CallSite]] = {}
        for site, _ in tracer.calls.callers(maker, None):
            owner = site.function.owner
            if owner is not None:
                root = tracer.source.bases(owner)[-1]
                siblings.setdefault((site.function.name, root), {})[site.call] = site
        optional = [one for one in maker.parameters if maker.default(one) is not None]
        for sites in map(list, map(dict.values, siblings.values())):
            for site in sites:
                for field in optional:
                    if field not in (BOUND, OWN) and _is_dropped(tracer, field, site, maker, sites):
                        yield Finding(
                            site.function.module.path,
                            site.call.lineno,
                            site.function.symbol,
                            Kind.DROPPED,
                            field,
                            Sure.LIKELY if guards.capture(field) else Sure.LOOK,
                            who(field),
                        )


def _is_dropped(
    tracer: Tracer, field: str, site: CallSite, maker: Function, siblings: Sequence[CallSite]
) -> bool:
    frame = Frame(site.function, site.function.owner)
    values = tracer.argument(site, frame, field, maker)
    default = maker.default(field)
    if not values or not all(one.missing or one.node is default for one in values):
        return False
    if _comes_from_model_state(tracer, field, site, frame, maker):
        return False
    bases = tracer.source.bases(site.function.owner) if site.function.owner else []
    forwarding = [
        (other, keyword.value)
        for other in siblings
        for keyword in other.call.keywords
        if other is not site and keyword.arg == field
    ]
    if guards.capture(field):
        place = tracer.flow(site.function).places[site.call]
        if guards.implied(place.guards, guards.capture, tracer, on=False):
            return False
    return any(
        _is_at_hand(tracer, value, other, site)
        for other, value in forwarding
        if field not in OF_MLA or other.function.owner in bases
    )


def _comes_from_model_state(
    tracer: Tracer, field: str, site: CallSite, frame: Frame, maker: Function
) -> bool:
    """Whether the metadata of the model's own, given in the same call, brings a field."""
    for value in tracer.argument(site, frame, OWN, maker):
        name = dotted(value.node.func) if isinstance(value.node, ast.Call) else ""
        made = tracer.source.resolve(value.frame.function.module, name) if name else None
        method = tracer.source.method(made, EXTRA) if isinstance(made, Class) else None
        if method and any(
            isinstance(node, ast.Constant) and node.value == field for node in walk(method.node)
        ):
            return True
    return False


def _is_at_hand(tracer: Tracer, value: ast.expr, site: CallSite, here: CallSite) -> bool:
    """Whether all that an expression at a call is made of is there at another call too."""
    place = tracer.flow(site.function).places[site.call]
    function = here.function
    owner = function.owner
    bases = tracer.source.bases(owner) if owner else []
    attributes = tracer.source.attributes(owner) if owner else set()
    refused = {
        dotted(node)
        for guard in tracer.flow(function).places[here.call].guards
        if guard.leaves
        for node in _whole_names(guard.test)
    } - {""}
    if isinstance(value, ast.Constant):
        return False
    for node, names in parts(value, place.names):
        if dotted(node) in refused:
            return False
        if isinstance(node, ast.Name) and node.id in site.function.parameters:
            if node.id not in names and node.id not in function.parameters:
                return False
        elif isinstance(node, ast.Attribute) and dotted(node.value) == site.function.itself:
            # What a class made for itself only its subclasses have.
            inherited = site.function.owner in bases and node.attr in attributes
            if not inherited:
                return False
    return True


def _whole_names(tree: ast.AST) -> list[ast.AST]:
    """The names and attributes in an expression, without those that they are made of."""
    nodes = [node for node in walk(tree) if isinstance(node, ast.Name | ast.Attribute)]
    inner = [node.value for node in nodes if isinstance(node, ast.Attribute)]
    return [node for node in nodes if node not in inner]
