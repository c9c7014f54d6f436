"""What the audit looks for: each rule is one function from a vLLM's code to findings."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from mrv2_fixes.audit import guards
from mrv2_fixes.audit.finding import Finding, Kind, Sure
from mrv2_fixes.audit.flow import Names, Place, mentions, parts
from mrv2_fixes.audit.source import RUNNER, Class, Function, dotted, walk
from mrv2_fixes.audit.trace import CallSite, Frame, Tracer, Value

METADATA = "CommonAttentionMetadata"
BOUND = "seq_lens_cpu_upper_bound"
LONGEST = "max_seq_len"
QUERIES = "query_start_loc"
# How many tokens a wrapper adds to the bound.
STEP = "step"
# A function with one of these parameters knows the batch.
BATCH = {"input_batch", "scheduler_output", "num_reqs"}

# The parameter that brings what only one kind of model has, and the method that says what.
OWN, EXTRA = "model_specific_attn_metadata", "get_extra_common_attn_kwargs"
WHY_DROPPED = {
    "dcp_local_seq_lens": "MLA and FlashInfer builders take it where context is spread (DCP)",
    "dcp_local_seq_lens_cpu_upper_bound": "sparse MLA sizes by it where context is spread (DCP)",
    "fast_prefill": "prefill of layers that share a KV cache is not cut to the logits",
    "for_cudagraph_capture": "builders take a capture for a batch, and set nothing up for it",
    "is_prefilling": "builders that ask for it assert it, or take prompts for decodes",
    "mm_req_doc_ranges": "PrefixLM models attend causally over images",
    "positions": "DeepSeek V4, MiniMax M3 and CPU encoder-only builders need it",
    "req_idx": "indexer and sparse MLA take chunks of one request for several (PCP)",
    "rswa_prefix_lens": "sliding windows that keep the prompt (R-SWA) lose it",
}

# Only sparse MLA reads these, with prefill spread over ranks; no model state of such a model is but
# the default one, or derives from it.
OF_MLA = {"dcp_local_seq_lens_cpu_upper_bound", "req_idx"}

Rule = Callable[[Tracer], Iterator[Finding]]


@dataclass(frozen=True, eq=False)
class Construction:
    """A call that makes metadata, as an object of one class runs it.

    whole: whether what it leaves out is missing, not taken over from other metadata.
    """

    site: CallSite
    frame: Frame
    whole: bool

    def values(self, tracer: Tracer, field: str) -> Iterator[Value]:
        """What `field` may be."""
        given = any(one.arg == field for one in self.site.call.keywords)
        later = [] if given else self._set_later(tracer, field)
        for value in later:
            yield from tracer.again(value)
        if given or (self.whole and not later):
            yield from tracer.argument(self.site, self.frame, field, None)

    def _set_later(self, tracer: Tracer, field: str) -> list[Value]:
        """What the function sets as `field` of what it made."""
        definitions = tracer.flow(self.site.function).definitions
        made = {f"{name}.{field}" for name, one in definitions if one.value is self.site.call}
        return [
            Value(one.value, self.frame, one.names, one.guards)
            for name, one in definitions
            if name in made
        ]


def constructions(tracer: Tracer) -> Iterator[Construction]:
    """Everything that makes metadata for V2, or makes it anew with other values."""
    for site in [*tracer.calls_of(METADATA), *tracer.calls_of("replace")]:
        keywords = {one.arg for one in site.call.keywords}
        whole = site.name == METADATA
        if _is_of_runner(tracer, site.function) and (whole or keywords & {BOUND, LONGEST}):
            for concrete in tracer.objects_of(site.function):
                yield Construction(site, Frame(site.function, concrete), whole)


def _is_of_runner(tracer: Tracer, function: Function) -> bool:
    """Whether a function belongs to V2: a model file may also hold an attention backend."""
    if function.module.path.startswith(RUNNER):
        return True
    bases = tracer.source.bases(function.owner) if function.owner else []
    return any(base.module.path.startswith(RUNNER) for base in bases)


def bound_not_forwarded(tracer: Tracer) -> Iterator[Finding]:
    """The bound on the sequence lengths is left out, or None."""
    if not tracer.calls_by_keyword(BOUND):
        return  # from before there was one
    for made in constructions(tracer):
        for value in made.values(tracer, BOUND):
            handed_on = value.is_none and guards.is_about_none(value.local_guards, BOUND)
            if handed_on or not (value.missing or value.is_none):
                continue
            capture = _at_capture(tracer, value)
            yield _finding(
                value,
                Kind.BOUND,
                BOUND,
                Sure.LIKELY if capture or _conditional(value) else Sure.CERTAIN,
                "FlexAttention asserts it at capture, MLA and GDN where rows count as prefills"
                if capture
                else "Mamba, short conv, MLA and ROCm AITER builders assert it or copy the lengths "
                "from the device",
            )


def max_seq_len_over_estimated(tracer: Tracer) -> Iterator[Finding]:
    """max_seq_len is the model's maximum while a batch runs, at once or by an attribute."""
    why = (
        "FlashInfer TRTLLM walks block-table entries past the sequences; others size work and "
        "memory by it"
    )
    once: dict[tuple[Class, str], Finding] = {}
    for made in constructions(tracer):
        for value in made.values(tracer, LONGEST):
            if _at_capture(tracer, value):
                continue
            for over, attribute in _over_estimates(tracer, value):
                if guards.implied(over.guards, guards.capture, tracer):
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
                        why,
                    )
                else:
                    sure = Sure.LIKELY if _conditional(over) else Sure.CERTAIN
                    yield _finding(over, Kind.OVER, LONGEST, sure, why)
    for (concrete, attribute), finding in once.items():
        bases = tracer.source.bases(concrete)[1:]
        if not any((base, attribute) in once for base in bases):  # said of the base already
            yield finding


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
        if concrete is None or attribute in tracer.set_from_outside:
            return
        assigned = tracer.assignments(attribute, concrete)
        renewed = [
            one for one in assigned if tracer.knows_batch(one.frame.function, concrete, BATCH)
        ]
        for one in renewed or assigned:
            if one.node is not None:
                for over, _ in _over_parts(tracer, one, one.node):
                    yield over, "" if renewed else attribute


def _over_parts(tracer: Tracer, value: Value, node: ast.expr) -> list[tuple[Value, str]]:
    values = tracer.again(replace(value, node=node))
    return [found for one in values for found in _over_estimates(tracer, one)]


def speculative_tensors_not_gated(tracer: Tracer) -> Iterator[Finding]:
    """Tensors of speculative decoding are filled whether or not there is any."""
    why = (
        "Mamba2 asserts them against its decode rows: a request that joins running ones kills the "
        "engine"
    )
    for function in tracer.source.functions():
        if function.name != "get_extra_attn_kwargs" or function.owner is None:
            continue
        frame = Frame(function, function.owner)
        for returned, place in tracer.flow(function).returns:
            for tensor in guards.SPECULATIVE:
                for value in tracer.entry(returned, tensor, frame, place):
                    for end in _of_objects(tracer, value):
                        filled = end.node is not None and not end.is_none and not end.missing
                        if filled and not guards.implied(end.guards, guards.speculative, tracer):
                            yield _finding(end, Kind.SPECULATIVE, tensor, Sure.CERTAIN, why)


def _of_objects(tracer: Tracer, value: Value) -> Iterator[Value]:
    """A value, or where it is a field of a dataclass, what those who make such objects give."""
    owner = value.frame.function.owner
    name = dotted(value.node) if value.node is not None else ""
    of, _, field = name.rpartition(".")
    if owner is None or of != value.frame.function.itself or field not in _fields(tracer, owner):
        yield value
        return
    for one in tracer.source.derived(owner):
        for site in tracer.calls_of(one.name):
            if tracer.source.resolve(site.function.module, site.target) is one:
                for concrete in tracer.objects_of(site.function):
                    frame = Frame(site.function, concrete)
                    for given in tracer.argument(site, frame, field, None):
                        if given.missing:
                            continue
                        yield _under(given, value)


def fields_dropped(tracer: Tracer) -> Iterator[Finding]:
    """What the same method of another class forwards, and this one leaves out though it has it."""
    makers = {made.site.function for made in constructions(tracer)}
    for maker in makers:
        siblings: dict[tuple[str, Class], dict[Function, CallSite]] = {}
        for site, _ in tracer.callers(maker, None):
            owner = site.function.owner
            if owner is not None:
                root = tracer.source.bases(owner)[-1]
                siblings.setdefault((site.function.name, root), {})[site.function] = site
        optional = [one for one in maker.parameters if maker.default(one) is not None]
        for sites in siblings.values():
            for site in sites.values():
                for field in optional:
                    if field != BOUND and _is_dropped(tracer, field, site, maker, sites.values()):
                        why = WHY_DROPPED.get(field, "the builders that read it go without")
                        yield Finding(
                            site.function.module.path,
                            site.call.lineno,
                            site.function.symbol,
                            Kind.DROPPED,
                            field,
                            Sure.LIKELY if guards.capture(field) else Sure.LOOK,
                            why,
                        )


def _is_dropped(
    tracer: Tracer, field: str, site: CallSite, maker: Function, siblings: Iterable[CallSite]
) -> bool:
    frame = Frame(site.function, site.function.owner)
    values = list(tracer.argument(site, frame, field, maker))
    default = maker.default(field)
    if not values or not all(one.missing or one.node is default for one in values):
        return False
    if _comes_from_model_state(tracer, field, site, frame, maker):
        return False
    bases = tracer.source.bases(site.function.owner) if site.function.owner else []
    return any(
        _is_at_hand(tracer, keyword.value, other, site.function)
        for other in siblings
        if field not in OF_MLA or other.function.owner in bases
        for keyword in other.call.keywords
        if other is not site and keyword.arg == field
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


def _is_at_hand(tracer: Tracer, value: ast.expr, site: CallSite, function: Function) -> bool:
    """Whether all that an expression at a call is made of is there in another method too."""
    place = tracer.flow(site.function).places[site.call]
    owner = function.owner
    bases = tracer.source.bases(owner) if owner else []
    attributes = tracer.source.attributes(owner) if owner else set()
    asserted = {
        node.id
        for one in walk(function.node)
        if isinstance(one, ast.Assert)
        for node in walk(one)
        if isinstance(node, ast.Name)
    }
    if isinstance(value, ast.Constant):
        return False
    for node, names in parts(value, place.names):
        if isinstance(node, ast.Name) and node.id in site.function.parameters:
            if node.id not in names and (node.id not in function.parameters or node.id in asserted):
                return False
        elif isinstance(node, ast.Attribute) and dotted(node.value) == site.function.itself:
            # What a class made for itself only its subclasses have.
            inherited = site.function.owner in bases and node.attr in attributes
            if not inherited:
                return False
    return True


def _under(inner: Value, outer: Value) -> Value:
    """A value with the conditions of another one, too."""
    return replace(inner, guards=(*outer.guards, *inner.guards))


def _fields(tracer: Tracer, owner: Class) -> set[str]:
    return {name for base in tracer.source.bases(owner) for name in base.fields}


def _at_capture(tracer: Tracer, value: Value) -> bool:
    """Whether the way of a value is one of CUDA graph capture alone."""
    if guards.implied(value.guards, guards.capture, tracer):
        return True
    for index, (site, concrete) in enumerate(value.path):
        if guards.capture(site.function.name):
            return True
        for parameter in site.function.parameters:
            if "capture" in parameter:
                name = ast.Name(parameter, ast.Load())
                frame = Frame(site.function, concrete, value.path[index + 1 :])
                values = list(tracer.follow(name, frame, Place({}, ())))
                if values and all(guards.is_true(one.node) for one in values):
                    return True
    return False


def _conditional(value: Value) -> bool:
    """Whether it is so in one branch only of the function where it stands."""
    return any(not guard.leaves for guard in value.local_guards)


def _finding(value: Value, kind: Kind, field: str, sure: Sure, why: str) -> Finding:
    function = value.frame.function
    assert value.node is not None
    return Finding(function.module.path, value.node.lineno, function.symbol, kind, field, sure, why)


def bound_behind_queries(tracer: Tracer) -> Iterator[Finding]:
    """The rows are made longer than the batch's, and the bound is handed on as the batch's."""
    for site in tracer.calls_by_keyword(BOUND):
        for concrete in tracer.objects_of(site.function):
            frame = Frame(site.function, concrete)
            place = tracer.flow(site.function).places.get(site.call)
            given = {one.arg: one.value for one in site.call.keywords}
            starts = [value for name, value in given.items() if name and QUERIES in name]
            if place is None or (STEP in given and not _is_zero(given[STEP])):
                continue
            bounds = list(tracer.follow(given[BOUND], frame, place))
            of_batch = [
                one for one in bounds if dotted(one.node or site.call).endswith(f".{BOUND}")
            ]
            if of_batch and any(_is_lengthened(value, place.names) for value in starts):
                yield _finding(
                    replace(of_batch[0], node=site.call),
                    Kind.BEHIND,
                    BOUND,
                    Sure.LIKELY,
                    "MLA, its indexers and sliding windows see one context token less; "
                    "TurboQuant cuts the prefill short",
                )


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


def _is_lengthened(value: ast.expr, names: Names) -> bool:
    """Whether the starts of the batch's rows are moved apart: one more token each, or several."""
    for node, within in parts(value, names):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            sides = [mentions(side, within) for side in (node.left, node.right)]
            for one, other in (sides, sides[::-1]):
                if any(QUERIES in name for name in one) and any("arange" in name for name in other):
                    return True
    return False


RULES: tuple[Rule, ...] = (
    bound_not_forwarded,
    max_seq_len_over_estimated,
    speculative_tensors_not_gated,
    fields_dropped,
    bound_behind_queries,
)
