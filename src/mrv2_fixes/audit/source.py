"""The part of a vLLM that makes attention metadata for Model Runner V2, as syntax trees.

That is the package of the runner, and those model files that speak of it. Nothing is imported;
a name is looked up where an import in the same vLLM says that it stands.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from mrv2_fixes.errors import TargetUnusable

RUNNER = "vllm/v1/worker/gpu/"
MODELS = ("vllm/models/", "vllm/model_executor/models/")
# What a model file has in it that is part of the runner, or of what derives from its parts.
WORDS = (b"worker.gpu", b"build_attn_metadata", b"ModelState", b"Speculator")
# What `ast.parse` raises for text that is not, or not sensibly, Python.
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


@dataclass(eq=False)
class Function:
    """A function or method; what is defined within it counts as part of it."""

    module: Module
    owner: Class | None
    node: ast.FunctionDef | ast.AsyncFunctionDef

    def __post_init__(self) -> None:
        self.calls: list[ast.Call] = []
        self.imports: list[ast.Import | ast.ImportFrom] = []
        self.assigned: list[tuple[ast.expr, ast.expr]] = []
        self.read: set[tuple[str, str]] = set()  # what stands before the dot, and the attribute
        self.stored: set[tuple[str, str]] = set()  # the same, of those that it sets
        for node in walk(self.node):
            if isinstance(node, ast.Attribute):
                read = isinstance(node.ctx, ast.Load)
                (self.read if read else self.stored).add((dotted(node.value), node.attr))
            elif isinstance(node, ast.Call):
                self.calls.append(node)
            elif isinstance(node, ast.Assign):
                self.assigned.append((node.targets[0], node.value))
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self.assigned.append((node.target, node.value))
            elif isinstance(node, ast.Import | ast.ImportFrom):
                self.imports.append(node)

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def symbol(self) -> str:
        return f"{self.owner.name}.{self.name}" if self.owner else self.name

    @property
    def is_static(self) -> bool:
        return "staticmethod" in map(ast.unparse, self.node.decorator_list)

    @property
    def is_abstract(self) -> bool:
        return any(ast.unparse(one).endswith("abstractmethod") for one in self.node.decorator_list)

    @cached_property
    def itself(self) -> str:
        """The name of the first parameter of a method, by which it calls its object."""
        arguments = self.node.args.posonlyargs + self.node.args.args
        return arguments[0].arg if self.owner and arguments and not self.is_static else ""

    @cached_property
    def positional(self) -> list[str]:
        """The parameters that a caller may give by position."""
        arguments = self.node.args.posonlyargs + self.node.args.args
        return [one.arg for one in arguments if one.arg != self.itself]

    @cached_property
    def parameters(self) -> list[str]:
        """Every parameter with a name of its own."""
        return self.positional + [one.arg for one in self.node.args.kwonlyargs]

    @property
    def keywords(self) -> str:
        """The name of ``**kwargs``, or empty."""
        return self.node.args.kwarg.arg if self.node.args.kwarg else ""

    def default(self, parameter: str) -> ast.expr | None:
        """What a parameter is when it is left out; None when it may not be."""
        given = self.node.args
        arguments = given.posonlyargs + given.args
        pairs = [
            *zip(reversed(arguments), reversed(given.defaults), strict=False),
            *zip(given.kwonlyargs, given.kw_defaults, strict=True),
        ]
        return next((value for one, value in pairs if one.arg == parameter), None)


@dataclass(eq=False)
class Class:
    """A class at the top level of a module."""

    module: Module
    node: ast.ClassDef
    methods: dict[str, Function] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.node.name

    @cached_property
    def fields(self) -> list[str]:
        """The names that its body annotates: those of a dataclass, in order."""
        return [
            one.target.id
            for one in self.node.body
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        ]


class Module:
    """One file: what it defines and imports at its top level, whatever ``if`` that stands in."""

    def __init__(self, path: str, tree: ast.Module) -> None:
        self.path = path
        self.tree = tree
        self.functions: dict[str, Function] = {}
        self.classes: dict[str, Class] = {}
        self.imports: dict[str, str] = {}  # local name to the full name of what it stands for
        self.aliases: dict[str, str] = {}
        for node in _top_level(tree.body):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.functions[node.name] = Function(self, None, node)
            elif isinstance(node, ast.ClassDef):
                self._add_class(node)
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.Attribute):
                for target in node.targets:
                    self.aliases[ast.unparse(target)] = ast.unparse(node.value)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                self._add_import(node)
        for function in self.all_functions():
            for statement in function.imports:
                self._add_import(statement)

    def all_functions(self) -> Iterator[Function]:
        """Its functions and the methods of its classes."""
        yield from self.functions.values()
        for one in self.classes.values():
            yield from one.methods.values()

    def original(self, name: str) -> str:
        """What a name of the module is called where it comes from, as far as is written here."""
        for _ in range(4):
            name = self.aliases.get(name) or self.imports.get(name) or name
        return name

    def _add_class(self, node: ast.ClassDef) -> None:
        made = self.classes[node.name] = Class(self, node)
        for one in _top_level(node.body):
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                made.methods[one.name] = Function(self, made, one)

    def _add_import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                self.imports[name] = alias.name if alias.asname else name
            return
        origin = node.module or ""
        if node.level:
            # The folder of the file is one level up, also of a package's __init__.py.
            within = self.path.split("/")[: -node.level]
            origin = ".".join([*within, *filter(None, [node.module])])
        for alias in node.names:
            self.imports[alias.asname or alias.name] = f"{origin}.{alias.name}"


class Source:
    """The modules, classes and functions of one vLLM that matter.

    files: path below the root (``vllm/…``) to the file's bytes; read only as far as needed.
    Raises TargetUnusable when a file that matters does not parse.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files
        self._modules: dict[str, Module] = {}
        self._bases: dict[Class, list[Class]] = {}
        self.modules: list[Module] = []
        for path in sorted(files):
            if path.startswith((RUNNER, *MODELS)) and path.endswith(".py"):
                text = files[path]
                if path.startswith(RUNNER) or any(word in text for word in WORDS):
                    self.modules.append(self._module(path, text))

    def functions(self) -> Iterator[Function]:
        """Every function and method of the modules that matter."""
        for module in self.modules:
            yield from module.all_functions()

    def classes(self) -> Iterator[Class]:
        """Every class of the modules that matter."""
        for module in self.modules:
            yield from module.classes.values()

    def resolve(self, module: Module, name: str, depth: int = 8) -> Function | Class | str | None:
        """What a dotted name means at the top level of `module`.

        The full name, as a string, for what stands outside this vLLM or could not be found there.
        """
        first, _, rest = name.partition(".")
        if not rest and first in module.functions:
            return module.functions[first]
        if not rest and first in module.classes:
            return module.classes[first]
        if depth and first in module.aliases and module.aliases[first] != first:
            target = module.aliases[first]
            return self.resolve(module, f"{target}.{rest}" if rest else target, depth - 1)
        if first not in module.imports:
            return None
        full = f"{module.imports[first]}.{rest}" if rest else module.imports[first]
        within, _, last = full.rpartition(".")
        other = self._at(within) if depth and within.startswith("vllm") else None
        return (self.resolve(other, last, depth - 1) if other else None) or full

    def bases(self, one: Class) -> list[Class]:
        """The class and those of this vLLM that it derives from, nearest first."""
        if one not in self._bases:
            self._bases[one] = [one]  # what a circle of bases ends in
            found = [one]
            for base in one.node.bases:
                resolved = self.resolve(one.module, dotted(base))
                if isinstance(resolved, Class):
                    found += [other for other in self.bases(resolved) if other not in found]
            self._bases[one] = found
        return self._bases[one]

    def fields(self, one: Class | None) -> list[str]:
        """The fields of a dataclass, those of its bases first."""
        bases = reversed(self.bases(one)) if one else ()
        return list(dict.fromkeys(name for base in bases for name in base.fields))

    def derived(self, one: Class) -> list[Class]:
        """The class, and those that matter that derive from it."""
        others = (other for other in self.classes() if other is not one)
        return [one, *(other for other in others if one in self.bases(other))]

    def method(self, one: Class, name: str, after: Class | None = None) -> Function | None:
        """The method that an object of a class has by that name; after: whose ``super()`` it is."""
        bases = self.bases(one)
        if after is not None:
            bases = bases[bases.index(after) + 1 :] if after in bases else []
        return next((base.methods[name] for base in bases if name in base.methods), None)

    def attributes(self, one: Class) -> set[str]:
        """What an object of a class has by name: methods, fields, and what its methods set."""
        found: set[str] = set()
        for base in self.bases(one):
            found |= {*base.methods, *base.fields}
            for method in base.methods.values():
                found |= {name for of, name in method.stored if of == method.itself}
        return found

    def _at(self, name: str) -> Module | None:
        stem = name.replace(".", "/")
        for path in (f"{stem}.py", f"{stem}/__init__.py"):
            if path in self._modules:
                return self._modules[path]
            if path in self._files:
                return self._module(path, self._files[path])
        return None

    def _module(self, path: str, text: bytes) -> Module:
        try:
            made = self._modules[path] = Module(path, ast.parse(text, path))
        except UNREADABLE as error:
            reason = " ".join(str(error).split())
            raise TargetUnusable(f"{path}: does not parse ({reason}): mend it") from error
        return made


def walk(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node of a tree, in no order; several times as fast as `ast.walk`."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for value in node.__dict__.values():
            if isinstance(value, list):
                waiting += [one for one in value if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST):
                waiting.append(value)


def dotted(node: ast.AST) -> str:
    """``a.b.c``, or ``super().c``, as it is written; empty for what is no such name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super":
        parts.append("super()")
    else:
        return ""
    return ".".join(reversed(parts))


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If):
            yield from _top_level([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            handlers = [line for handler in node.handlers for line in handler.body]
            yield from _top_level([*node.body, *handlers, *node.orelse])
