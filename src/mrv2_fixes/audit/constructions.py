"""Where a vLLM makes attention metadata for Model Runner V2, and what it gives it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mrv2_fixes.audit.calls import CallSite, Frame
from mrv2_fixes.audit.flow import mentions
from mrv2_fixes.audit.hurt import BOUND, LONGEST
from mrv2_fixes.audit.source import RUNNER, Function, dotted
from mrv2_fixes.audit.trace import Tracer, Value

METADATA = "CommonAttentionMetadata"


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
        later = self._set_later(tracer, field)
        for value in later:
            yield from tracer.again(value)
        place = tracer.flow(self.site.function).places.get(self.site.call)
        always = place and any(len(one.guards) <= len(place.guards) for one in later)
        given = any(one.arg == field for one in self.site.call.keywords)
        if not always and (given or self.whole):
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
    makers = [METADATA, *_derived(tracer)]
    for site in [site for name in [*makers, "replace"] for site in tracer.calls.of(name)]:
        keywords = {one.arg for one in site.call.keywords}
        whole = site.name in makers
        again = keywords & {BOUND, LONGEST} and _is_metadata(tracer, site)
        if _is_of_runner(tracer, site.function) and (whole or again):
            for concrete in tracer.calls.objects_of(site.function):
                yield Construction(site, Frame(site.function, concrete), whole)


def _derived(tracer: Tracer) -> list[str]:
    """The classes of V2 that derive from the metadata, whose own definition lies outside V2."""
    return [
        one.name
        for one in tracer.source.classes()
        if any(
            base.module.original(dotted(node)).rpartition(".")[2] == METADATA
            for base in tracer.source.bases(one)
            for node in base.node.bases
        )
    ]


def _is_metadata(tracer: Tracer, site: CallSite) -> bool:
    """Whether a call of ``replace`` makes metadata or a batch anew, as far as names say."""
    changed = site.call.args[0] if site.call.args else site.call.func
    place = tracer.flow(site.function).places.get(site.call)
    names = mentions(changed, place.names if place else {})
    return any(word in one.lower() for one in names for word in ("metadata", "common", "batch"))


def _is_of_runner(tracer: Tracer, function: Function) -> bool:
    """Whether a function belongs to V2: a model file may also hold an attention backend."""
    if function.module.path.startswith(RUNNER):
        return True
    bases = tracer.source.bases(function.owner) if function.owner else []
    return any(base.module.path.startswith(RUNNER) for base in bases)
