"""A vLLM's V2 runner run without torch: what it imports is a `Thing` that notes what is done to it.

Only the files that the edits look at run, under Python's own modules; everything else they import,
numpy and torch included, is a `Thing`, but for what they do with an `Array`. Two runs did the same
when their notes are equal.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib.util
import operator
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

PACKAGE = "vllm/v1/worker/gpu/"
METADATA = "vllm.v1.worker.gpu.attn_utils"
CONTRACT = "vllm.v1.worker.gpu.attn_metadata_contract"
STATES = "vllm.v1.worker.gpu.recycled_mamba_state"
RUNS = re.compile(
    PACKAGE + r"(model_states/\w+|spec_decode/(\w+/)?\w*speculator|model_runner|moved)\.py"
    r"|vllm/v1/core/sched/(scheduler|moved)\.py|vllm/v1/attention/backends/(gdn_attn|moved)\.py"
)
MAPPED = ("int", "float", "str", "bool", "bytes", "NoneType")


class Thing:
    """A value that nothing is known of but how it was come by.

    Every call, and everything stored in one, goes into `log`, in order. Things that were come by in
    the same way are equal, within one process. fields: attributes that are known after all.
    """

    def __init__(self, log: list[Any], label: str, key: object = None, **fields: object) -> None:
        self.__dict__.update(fields, _log=log, _label=label[-60:], _key=hash(key or label))

    def _next(self, label: str, *how: object) -> Thing:
        return Thing(self._log, self._label + label, (self._key, *map(key, how)))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self._next(f".{name}", "attribute", name)

    def __setattr__(self, name: str, value: object) -> None:
        self._log.append(("set", self._key, name, key(value)))
        self.__dict__[name] = value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and self._decorates(args[0]):
            return args[0]
        self._log.append(("call", self._key, key(args), key(kwargs)))
        return self._next("()", "call", args, kwargs)

    def _decorates(self, wrapped: object) -> bool:
        # `triton.jit` makes something that is subscripted, so what it decorates stays a Thing.
        return isinstance(wrapped, types.FunctionType) and self._label.startswith("torch.")

    def __getitem__(self, index: object) -> Any:
        return self._next(f"[{index}]", "item", index)

    def __setitem__(self, index: object, value: object) -> None:
        self._log.append(("store", self._key, key(index), key(value)))

    def __delitem__(self, index: object) -> None:
        self._log.append(("delete", self._key, key(index)))

    def __iter__(self) -> Iterator[Thing]:
        # Two, as most that is unpacked in these files has.
        return iter([self[0], self[1]])

    def __len__(self) -> int:
        return 2

    def __contains__(self, item: object) -> bool:
        return False

    def __index__(self) -> int:
        return 2

    __int__ = __index__

    def __enter__(self) -> Thing:
        self._log.append(("enter", self._key))
        return self

    def __exit__(self, *exception: object) -> None:
        self._log.append(("leave", self._key))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing) and self._key == other._key

    def __hash__(self) -> int:
        return int(self._key)

    def __repr__(self) -> str:
        return str(self._label)

    def __instancecheck__(self, instance: object) -> bool:
        return False

    def __mro_entries__(self, bases: object) -> tuple[type, ...]:
        return ()


def _operator(name: str) -> Callable[..., Thing]:
    def operate(self: Thing, *others: object) -> Thing:
        return self._next(f" {name} …", name, *others)

    return operate


for _name in ("add", "sub", "mul", "floordiv", "truediv", "mod", "and", "or", "xor", "pow"):
    setattr(Thing, f"__{_name}__", _operator(_name))
    setattr(Thing, f"__r{_name}__", _operator(f"r{_name}"))
for _name in ("lt", "le", "gt", "ge", "neg", "pos", "abs", "invert"):
    setattr(Thing, f"__{_name}__", _operator(_name))


class Longest(int):
    """What ``.item()`` gives; as good as an int, and told from one that went through ``int()``."""


class Array(Thing):
    """A tensor or array on the CPU, of one dimension, whose entries are known.

    A slice of it is a view, as of a tensor.
    """

    def __init__(self, log: list[Any], entries: list[Any], at: range | None = None) -> None:
        super().__init__(log, "array", "array", _entries=entries, _at=at or range(len(entries)))

    @property
    def _key(self) -> int:
        return hash(("array", *map(key, self.entries)))

    @property
    def entries(self) -> list[Any]:
        return [self._entries[index] for index in self._at]

    def _new(self, entries: Iterable[Any]) -> Array:
        return Array(self._log, [*entries])

    def write(self, values: Sequence[Any]) -> Array:
        for index, value in zip(self._at, values, strict=True):
            self._entries[index] = value
        return self

    def __getitem__(self, index: object) -> Any:
        if isinstance(index, slice):
            return Array(self._log, self._entries, self._at[index])
        if isinstance(index, Array):
            return self._new(self.entries[one] for one in index.entries)
        if isinstance(index, int):
            return Array(self._log, self._entries, range(self._at[index], self._at[index] + 1))
        return super().__getitem__(index)

    def __setitem__(self, index: object, value: object) -> None:
        if isinstance(index, int):
            self._entries[self._at[index]] = value
        elif isinstance(index, slice) and isinstance(value, int | Array):
            into = self[index]
            into.write(value.entries if isinstance(value, Array) else [value] * len(into))
        else:
            super().__setitem__(index, value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self._at)

    def __add__(self, other: object) -> Any:
        if isinstance(other, int):
            return self._new(one + other for one in self.entries)
        return super().__add__(other)  # type: ignore[misc]

    def __lt__(self, other: object) -> Any:
        if isinstance(other, Array):
            pairs = zip(self.entries, other.entries, strict=True)
            return self._new(one < another for one, another in pairs)
        return super().__lt__(other)  # type: ignore[misc]

    def max(self) -> Thing:
        longest = Longest(max(self.entries))
        return Thing(self._log, "maximum", ("maximum", longest), item=lambda: longest)

    def fill_(self, value: Any) -> Array:
        return self.write([value] * len(self))

    def clamp_(self, max: int) -> Array:
        return self.write([min(one, max) for one in self.entries])


# What numpy and torch do with arrays; NotImplemented of anything else.


def _fromiter(log: list[Any], entries: Iterable[Any], **_: Any) -> Any:
    return Array(log, [*entries])


def _argsort(log: list[Any], array: object, kind: str = "quicksort") -> Any:
    if not isinstance(array, Array):
        return NotImplemented
    entries = array.entries
    # What need not be stable is not.
    numbers = [*range(len(entries))][:: 1 if kind == "stable" else -1]
    return Array(log, sorted(numbers, key=entries.__getitem__))


def _zeros(log: list[Any], *size: Any, dtype: object = None, device: object = None) -> Any:
    if device != "cpu" or len(size) != 1 or not repr(dtype).endswith("int32"):
        return NotImplemented
    return Array(log, [0] * operator.index(size[0]))


def _add(log: list[Any], one: object, other: object, out: object = None) -> Any:
    if not (isinstance(one, Array) and isinstance(other, int) and isinstance(out, Array)):
        return NotImplemented
    return out.write((one + other).entries)


def _clamp(log: list[Any], array: object, max: object = None, **more: Any) -> Any:
    if not (isinstance(array, Array) and isinstance(max, int)) or more:
        return NotImplemented
    return Array(log, array.entries).clamp_(max)


def _pad(log: list[Any], array: object, pad: tuple[int, int]) -> Any:
    if not isinstance(array, Array):
        return NotImplemented
    return Array(log, [*[0] * pad[0], *array.entries, *[0] * pad[1]])


ARRAYS: dict[str, dict[str, Callable[..., Any]]] = {
    "numpy": {"fromiter": _fromiter, "argsort": _argsort},
    "torch": {"zeros": _zeros, "add": _add, "clamp": _clamp},
    "torch.nn.functional": {"pad": _pad},
}


def _library(log: list[Any], name: str) -> Thing:
    """A module that is a Thing but for what it does with arrays."""
    module = Thing(log, name)

    def known(function: Callable[..., Any], otherwise: Thing) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(log, *args, **kwargs)
            return otherwise(*args, **kwargs) if result is NotImplemented else result

        return call

    for function, does in ARRAYS.get(name, {}).items():
        module.__dict__[function] = known(does, getattr(module, function))
    if name.startswith("torch") and name != "torch.nn.functional":
        part = {"torch": "nn", "torch.nn": "functional"}[name]
        module.__dict__[part] = _library(log, f"{name}.{part}")
    return module


def key(value: object) -> Any:
    """What two values must have in common to count as equal."""
    if isinstance(value, Thing):
        return value._key
    if isinstance(value, Longest):
        return ("int", int(value))
    if isinstance(value, list | tuple):
        return tuple(map(key, value))
    if isinstance(value, dict):
        return tuple((key(name), key(one)) for name, one in value.items())
    if isinstance(value, slice):
        return ("slice", key(value.start), key(value.stop), key(value.step))
    kind = type(value).__name__
    if kind in MAPPED:
        return (kind, value)
    fields = getattr(value, "__dataclass_fields__", None)
    if fields and not isinstance(value, type):
        return (kind, *(key(getattr(value, name, None)) for name in fields))
    return kind


class World:
    """The modules of one vLLM, run as they are imported.

    files: path below the root to source.
    utils: whether `build_attn_metadata` runs, or something in its place that notes what it gets.
    log: what was done to the Things. builds: what each call of `build_attn_metadata`, or of a
    builder that `group` gives, was given. checks: what the check of it was given until then.
    cleared: what the clearing of old states was.
    """

    def __init__(self, files: Mapping[str, bytes], *, utils: bool = False) -> None:
        self.log: list[Any] = []
        self.builds: list[dict[str, Any]] = []
        self.checks: list[Any] = []
        self.cleared: list[Any] = []
        self.files = files
        self._modules: dict[str, Any] = {}
        self._builtins = {
            **vars(builtins),
            "__import__": self._import,
            "print": lambda *args: self.log.append(("print", key(args))),
        }
        self._modules |= {name: _library(self.log, name) for name in ("numpy", "torch")}
        contract = types.ModuleType(CONTRACT)
        contract.__dict__.update(checked=self._checked, check_metadata=self._check)
        states = types.ModuleType(STATES)
        states.__dict__.update(clear_old_states=self._clear)
        self._modules |= {CONTRACT: contract, STATES: states}
        if utils:
            return
        *parents, _last = METADATA.split(".")
        fields: dict[str, Any] = {"build_attn_metadata": self._build}
        for depth in range(len(parents), -1, -1):
            name = ".".join(METADATA.split(".")[: depth + 1])
            self._modules[name] = Thing(self.log, name, **fields)
            fields = {METADATA.split(".")[depth]: self._modules[name]}

    @property
    def parameters(self) -> tuple[str, ...]:
        """Those of the release's own `build_attn_metadata`; LookupError where there is none."""
        return _parameters(self.files[PACKAGE + "attn_utils.py"])

    def group(self, name: str) -> Thing:
        """An AttentionGroup whose builder notes in `builds` what it gets."""

        def build(how: str) -> Callable[..., Thing]:
            def note(*args: Any, **kwargs: Any) -> Thing:
                self.builds.append({"how": how, "args": args, **kwargs, "checked": [*self.checks]})
                self.log.append(("build", len(self.builds)))
                return Thing(self.log, f"metadata {len(self.builds)}")

            return note

        hows = ("build", "build_for_cudagraph_capture")
        builder = Thing(self.log, f"{name} builder", **{how: build(how) for how in hows})
        hows = ("build_metadata", "build_metadata_for_cudagraph_capture")
        own = {how: build(how) for how in hows}
        return Thing(self.log, name, get_metadata_builder=lambda *_: builder, **own)

    def _checked(self, build: Callable[..., Any]) -> Callable[..., Any]:
        """In the place of the contract's decorator."""

        @functools.wraps(build)
        def checked_build(*args: Any, **kwargs: Any) -> Any:
            self.checks.append(key((args, kwargs)))
            return build(*args, **kwargs)

        return checked_build

    def _check(self, *args: Any) -> None:
        """In the place of the contract's `check_metadata`."""
        self.checks.append(key(args))

    def _clear(self, *args: Any) -> None:
        """In the place of `clear_old_states`."""
        self.cleared.append(key(args))

    def note(self, module: str, name: str) -> None:
        """Let `module` have a `name` that notes in `builds` the keywords that it is called with."""

        def noted(*args: Any, **kwargs: Any) -> Thing:
            self.builds.append({"args": args, **kwargs} if args else kwargs)
            return Thing(self.log, f"{name} {len(self.builds)}", **kwargs)

        self.module(module).__dict__[name] = noted

    def module(self, name: str) -> Any:
        """The module of that name. Whatever its code raises comes out."""
        if name not in self._modules:
            path = name.replace(".", "/") + ".py"
            if path in self.files and (RUNS.fullmatch(path) or name == METADATA):
                module = types.ModuleType(name)
                module.__dict__["__builtins__"] = self._builtins
                self._modules[name] = module
                exec(_compiled(path, self.files[path]), module.__dict__)
            else:
                self._modules[name] = Thing(self.log, name)
        return self._modules[name]

    def _import(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        if not level and name.partition(".")[0] in sys.stdlib_module_names:
            return __import__(name, globals, locals, fromlist or (), level)
        if level:
            package = globals["__name__"].rpartition(".")[0]
            name = importlib.util.resolve_name("." * level + name, package)
        module = self.module(name)
        for item in fromlist or ():
            if isinstance(module, Thing) and item not in module.__dict__:
                path = f"{name}.{item}".replace(".", "/") + ".py"
                if path in self.files:
                    module.__dict__[item] = self.module(f"{name}.{item}")
        return module if fromlist else self.module(name.partition(".")[0])

    def _build(self, *args: Any, **kwargs: Any) -> Thing:
        """In the place of `build_attn_metadata`; takes what the release's own takes."""
        if len(args) > len(self.parameters) or not set(kwargs) <= set(self.parameters):
            raise TypeError("arguments that build_attn_metadata does not take")
        given = dict(zip(self.parameters, args, strict=False))
        if set(given) & set(kwargs):
            raise TypeError("an argument of build_attn_metadata given twice")
        self.builds.append({**given, **kwargs, "cleared": [*self.cleared]})
        self.log.append(("build", len(self.builds)))
        return Thing(self.log, f"metadata {len(self.builds)}")


@lru_cache(maxsize=64)
def _compiled(path: str, source: bytes) -> types.CodeType:
    return compile(source, path, "exec", dont_inherit=True)


@lru_cache(maxsize=64)
def _parameters(source: bytes) -> tuple[str, ...]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == "build_attn_metadata":
            return tuple(argument.arg for argument in [*node.args.args, *node.args.kwonlyargs])
    raise LookupError("attn_utils.py without build_attn_metadata")
