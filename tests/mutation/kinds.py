"""The ways in which a fork may have changed a method that an edit looks at, each a function.

A kind gets a `Spot` and gives the new text of the file, or None where it does not apply there. What
comes of it need not make sense; what it then does is for the oracle to see.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .source import CALLS, RELATED, Source, Spot


@dataclass(frozen=True)
class Change:
    """What a kind made of a file.

    names: what a class, a method or the file that the oracle asks for is called from then on.
    beside: further files, by their name in the same folder.
    """

    text: str
    names: Mapping[str, str] = field(default_factory=dict)
    beside: Mapping[str, str] = field(default_factory=dict)


Kind = Callable[[Spot], "Change | str | None"]
KINDS: dict[str, list[Kind]] = {}
# Kinds after which a patch still fits, so that a drift would be a fault too.
HARMLESS: set[str] = set()


def kind(group: str, *, harmless: bool = False) -> Callable[[Kind], Kind]:
    """Enter a function among the kinds."""

    def enter(function: Kind) -> Kind:
        KINDS.setdefault(group, []).append(function)
        if harmless:
            HARMLESS.add(function.__name__)
        return function

    return enter


# Rename.


@kind("rename")
def local(spot: Spot) -> str | None:
    name = spot.some(sorted({node.id for node in spot.names(ast.Store)}))
    if name is None:
        return None
    return spot.source.swapped([one for one in spot.names() if one.id == name], f"{name}_")


@kind("rename")
def parameter(spot: Spot) -> str | None:
    argument = spot.some([one for one in ast.walk(spot.method.args) if isinstance(one, ast.arg)])
    if argument is None:
        return None
    begin, _ = spot.source.span(argument)
    name = argument.arg
    edits = [(begin, begin + len(name), f"{name}_")]
    edits += [(*spot.source.span(one), f"{name}_") for one in spot.names() if one.id == name]
    return spot.source.replaced(*edits)


@kind("rename")
def one_use(spot: Spot) -> str | None:
    node = spot.some(spot.names(ast.Load))
    return None if node is None else spot.source.swapped([node], spot.name())


@kind("rename")
def attribute_in_the_file(spot: Spot) -> str | None:
    return _attribute(spot, spot.source.tree)


@kind("rename")
def attribute_in_the_method(spot: Spot) -> str | None:
    return _attribute(spot, spot.method)


def _attribute(spot: Spot, within: ast.AST) -> str | None:
    names = sorted({one.attr for one in ast.walk(spot.method) if isinstance(one, ast.Attribute)})
    near = [name for name in names if name in RELATED]
    name = spot.some(near if near and spot.rng.random() < 0.6 else names)
    edits = [
        (spot.source.span(one)[1] - len(one.attr), spot.source.span(one)[1], f"{one.attr}_")
        for one in ast.walk(within)
        if isinstance(one, ast.Attribute) and one.attr == name
    ]
    return spot.source.replaced(*edits)


@kind("rename")
def keyword(spot: Spot) -> str | None:
    call = spot.call()
    argument = call and spot.some([one for one in call.keywords if one.arg])
    if not argument or not argument.arg:
        return None
    begin, _ = spot.source.span(argument)
    return spot.source.replaced((begin, begin + len(argument.arg), f"{argument.arg}_"))


@kind("rename")
def method(spot: Spot) -> Change:
    name = spot.method.name
    if name == "__init__":
        return Change(spot.source.text)
    text = re.sub(rf"\b{name}\b", f"{name}_v2", spot.source.text)
    return Change(text, {f"{spot.path}:{name}": f"{name}_v2"})


@kind("rename")
def class_(spot: Spot) -> Change:
    name = spot.owner.name
    text = re.sub(rf"\b{name}\b", f"{name}V2", spot.source.text)
    return Change(text, {name: f"{name}V2"})


@kind("rename")
def self_(spot: Spot) -> str:
    return spot.source.swapped([one for one in spot.names() if one.id == "self"], "this").replace(
        f"def {spot.method.name}(\n        self,", f"def {spot.method.name}(\n        this,"
    )


@kind("rename")
def function_called(spot: Spot) -> str | None:
    call = spot.call()
    return (
        None
        if call is None
        else spot.source.swapped([call.func], f"{spot.source.code(call.func)}_v2")
    )


# Move.


@kind("move")
def statement_past_the_next(spot: Spot) -> str | None:
    return _move(spot, 1)


@kind("move")
def statement_far(spot: Spot) -> str | None:
    return _move(spot, spot.rng.randint(2, 6))


def _move(spot: Spot, far: int) -> str | None:
    statement = spot.statement(top=True)
    if statement is None:
        return None
    index = spot.method.body.index(statement)
    others = spot.method.body[index + 1 : index + 1 + far]
    if not others:
        return None
    lines = spot.source.lines
    first, middle = spot.source.lines_of(statement)
    last = spot.source.lines_of(others[-1])[1]
    return "\n".join([*lines[:first], *lines[middle:last], *lines[first:middle], *lines[last:]])


@kind("move")
def statement_out_of_its_branch(spot: Spot) -> str | None:
    branches = [one for one in spot.statements if isinstance(one, ast.If)]
    branch = spot.some(branches)
    inner = branch and spot.some(branch.body)
    if not branch or not inner:
        return None
    first, last = spot.source.lines_of(inner)
    moved = [line.replace("    ", "", 1) for line in spot.source.lines[first:last]]
    lines = [*spot.source.lines[:first], *spot.source.lines[last:]]
    if len(branch.body) == 1:
        lines.insert(first, f"{spot.source.indent(inner)}pass")
    at = spot.source.lines_of(branch)[0] if spot.rng.random() < 0.5 else last
    return "\n".join([*lines[:at], *moved, *lines[at:]])


@kind("move")
def statement_into_the_branch_behind(spot: Spot) -> str | None:
    statement = spot.statement(top=True)
    if statement is None:
        return None
    index = spot.method.body.index(statement)
    behind = [one for one in spot.method.body[index + 1 :] if isinstance(one, ast.If)]
    if not behind:
        return None
    first, last = spot.source.lines_of(statement)
    at = spot.source.lines_of(behind[0].body[0])[0]
    lines = spot.source.lines
    moved = [f"    {line}" for line in lines[first:last]]
    return "\n".join([*lines[:first], *lines[last:at], *moved, *lines[at:]])


@kind("move")
def statements_to_a_helper(spot: Spot) -> str | None:
    """Without what it needs handed over, or with it, where it is a return."""
    statement = spot.statement(top=True)
    if statement is None:
        return None
    code = spot.source.code(statement)
    names = sorted(
        {one.id for one in ast.walk(statement) if isinstance(one, ast.Name)}
        & ({one.id for one in spot.names(ast.Store)} | _parameters(spot) - {"self"})
    )
    taken = ", ".join(names)
    call = f"self._part({taken})"
    if isinstance(statement, ast.Return):
        call = f"return {call}"
    elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = ast.unparse(statement.targets[0])
        call, code = f"{target} = {call}", f"{code}\nreturn {target}"
    first, last = spot.source.lines_of(statement)
    lines = spot.source.lines
    behind = spot.source.lines_of(spot.method)[1]
    helper = ["", f"    def _part(self{', ' * bool(names)}{taken}):"]
    helper += [f"    {line}" for line in lines[first : last - 1]]
    helper += [f"    {lines[last - 1]}"]
    if not call.startswith("return ") and "\nreturn " in code:
        helper += [f"        return {code.rpartition('return ')[2]}"]
    return "\n".join(
        [*lines[:first], f"        {call}", *lines[last:behind], *helper, *lines[behind:]]
    )


def _parameters(spot: Spot) -> set[str]:
    return {one.arg for one in ast.walk(spot.method.args) if isinstance(one, ast.arg)}


@kind("move")
def call_to_an_inner_function(spot: Spot) -> str | None:
    call = spot.call()
    if call is None:
        return None
    holder = spot.holder(call)
    body = f"def build():\n    return {_joined(spot, call)}\n"
    text = spot.source.swapped([call], "build()")
    return Source(text).around(_same(text, spot, holder), f"{body}@")


@kind("move")
def call_to_a_lambda(spot: Spot) -> str | None:
    call = spot.call()
    return (
        None if call is None else spot.source.swapped([call], f"(lambda: {_joined(spot, call)})()")
    )


def _joined(spot: Spot, node: ast.AST) -> str:
    return ast.unparse(node)


def _same(text: str, spot: Spot, statement: ast.stmt) -> list[ast.stmt]:
    """The statement that begins on the same line in a changed text."""
    return [
        node
        for node in ast.walk(Source(text).tree)
        if isinstance(node, ast.stmt) and node.lineno == statement.lineno
    ][:1]


@kind("move")
def method_to_a_base(spot: Spot) -> str:
    bases = ", ".join(spot.source.code(base) for base in spot.owner.bases)
    name = spot.owner.name
    head = re.compile(rf"^class {name}\b.*?:\n", re.MULTILINE | re.DOTALL)
    return head.sub(f"class {name}Base({bases}):\n", spot.source.text, count=1) + (
        f"\n\nclass {name}({name}Base):\n    pass\n"
    )


@kind("move")
def method_alone_to_a_mixin(spot: Spot) -> Change | None:
    lines = spot.source.lines
    first, last = spot.source.lines_of(spot.method)
    name = spot.owner.name
    kept = [*lines[:first], "    pass", *lines[last:]]
    mixin = ["class Mixin:", *lines[first:last], "", ""]
    start = spot.owner.lineno - 1
    kept[start] = kept[start].replace(f"class {name}", f"class {name}(Mixin", 1)
    kept[start] = (
        kept[start].replace("(Mixin(", "(Mixin, ", 1)
        if "(Mixin(" in kept[start]
        else kept[start].replace("(Mixin", "(Mixin)", 1)
    )
    if spot.rng.random() < 0.5:
        return Change("\n".join([*kept[:start], *mixin, *kept[start:]]))
    module = spot.path.rpartition("/")[0].replace("/", ".")
    beside = "mixin_speculator.py" if "spec_decode" in spot.path else "mixin.py"
    imports = [line for line in lines[: _header(spot)] if line.strip() != "@dataclass"]
    kept.insert(start, f"from {module}.{beside[:-3]} import Mixin")
    return Change("\n".join(kept), beside={beside: "\n".join([*imports, *mixin])})


def _header(spot: Spot) -> int:
    """Number of lines before the first definition."""
    for node in spot.source.tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            return spot.source.lines_of(node)[0]
    return 0


@kind("move")
def method_to_a_nested_class(spot: Spot) -> str:
    first, last = spot.source.lines_of(spot.method)
    lines = spot.source.lines
    inner = [f"    {line}" if line else line for line in lines[first:last]]
    return "\n".join([*lines[:first], "    class Inner:", *inner, *lines[last:]])


@kind("move")
def method_to_a_function(spot: Spot) -> str:
    first, last = spot.source.lines_of(spot.method)
    lines = spot.source.lines
    name = spot.method.name
    moved = [line.removeprefix("    ") for line in lines[first:last]]
    moved = [line.replace(f"def {name}", f"def _{name}", 1) for line in moved]
    start = spot.source.lines_of(spot.owner)[0]
    kept = [*lines[start:first], f"    {name} = _{name}", *lines[last:]]
    return "\n".join([*lines[:start], *moved, "", "", *kept])


@kind("move")
def file(spot: Spot) -> Change:
    name = "moved_speculator.py" if "spec_decode" in spot.path else "moved.py"
    return Change(spot.source.text, {spot.path: f"{spot.path.rpartition('/')[0]}/{name}"})


@kind("move")
def class_to_another_file(spot: Spot) -> Change:
    name = "moved_speculator.py" if "spec_decode" in spot.path else "moved.py"
    module = f"{spot.path.rpartition('/')[0]}/{name}"[:-3].replace("/", ".")
    star = spot.rng.random() < 0.3
    left = f"from {module} import {'*' if star else spot.owner.name}\n"
    return Change(left, beside={name: spot.source.text})


# Wrap.

WRAPS = [
    "if True:\n    @",
    "if False:\n    @",
    "if not for_capture:\n    @",
    "if for_capture:\n    @",
    "if self.device:\n    @",
    "if self.device is None:\n    @",
    "if self.device is None:\n    pass\nelse:\n    @",
    "if self.device is None:\n    pass\nelif self.device:\n    @",
    "if self.device:\n    @\nelse:\n    @",
    "if self.device is None:\n    @\nelse:\n    @",
    "try:\n    @\nfinally:\n    pass",
    "try:\n    pass\nfinally:\n    @",
    "try:\n    @\nexcept ValueError:\n    raise",
    "try:\n    raise ValueError\nexcept ValueError:\n    @",
    "try:\n    pass\nexcept ValueError:\n    pass\nelse:\n    @",
    "with self.device:\n    @",
    "for _ in range(1):\n    @",
    "for _ in range(2):\n    @",
    "for _ in ():\n    @",
    "for _ in ():\n    pass\nelse:\n    @",
    "while True:\n    @\n    break",
    "while self.device is None:\n    @",
    "match 1:\n    case 1:\n        @",
    "match 1:\n    case 2:\n        @",
    "if (n := 1):\n    @",
    "def inner():\n    @\ninner()",
    "def inner():\n    @",
    "def inner():\n    @\nreturn inner()",
    "class Inner:\n    @",
    "async def inner():\n    @",
]


@kind("wrap")
def one_statement(spot: Spot) -> str | None:
    statement = spot.statement()
    return None if statement is None else spot.source.around([statement], spot.rng.choice(WRAPS))


@kind("wrap")
def several_statements(spot: Spot) -> str | None:
    statement = spot.statement(top=True)
    if statement is None:
        return None
    index = spot.method.body.index(statement)
    behind = spot.method.body[index : index + spot.rng.randint(2, 8)]
    if any(one not in spot.statements for one in behind):
        return None
    return spot.source.around(behind, spot.rng.choice(WRAPS))


@kind("wrap")
def the_rest_of_the_method(spot: Spot) -> str | None:
    statement = spot.statement(top=True)
    if statement is None or spot.method.body[-1] not in spot.statements:
        return None
    return spot.source.around(
        spot.method.body[spot.method.body.index(statement) :], spot.rng.choice(WRAPS)
    )


INSERTS = [
    "return None",
    "return",
    "if self.device is None:\n    return None",
    "if for_capture:\n    return None",
    "if not for_capture:\n    return None",
    "if self.device:\n    return None",
    "if self.device:\n    return None\nelse:\n    return None",
    "if self.device is None:\n    raise ValueError\nelse:\n    return None",
    "for _ in range(1):\n    return None",
    "while True:\n    return None",
    "with self.device:\n    return None",
    "try:\n    return None\nfinally:\n    pass",
    "match 1:\n    case _:\n        return None",
    "raise RuntimeError",
    "assert False",
    "assert self.device",
    "assert self.device is None",
    "yield None",
    "pass",
    "import math",
    "self.device.note('here')",
    "x = 1; y = 2",
    "if self.device is None:\n    yield 1",
]


def beside(spot: Spot, texts: list[str], form: str) -> str | None:
    """One of `texts` beside a statement; form: where they stand, as {} and @."""
    statement = spot.statement()
    if statement is None:
        return None
    return spot.source.around([statement], form.replace("{}", spot.rng.choice(texts)))


@kind("wrap")
def statement_before(spot: Spot) -> str | None:
    return beside(spot, INSERTS, "{}\n@")


@kind("wrap")
def statement_behind(spot: Spot) -> str | None:
    return beside(spot, INSERTS, "@\n{}")


@kind("wrap")
def decorator(spot: Spot) -> str:
    chosen = spot.rng.choice(
        [
            "staticmethod",
            "classmethod",
            "property",
            "(lambda function: function)",
            "(lambda function: lambda *args, **kwargs: function(*args, **kwargs))",
            "(lambda function: lambda *args, **kwargs: None)",
            "(lambda function: None)",
        ]
    )
    first, _ = spot.source.lines_of(spot.method)
    lines = list(spot.source.lines)
    lines.insert(first, f"{spot.indent}@{chosen}")
    return "\n".join(lines)


@kind("wrap")
def async_(spot: Spot) -> str:
    return spot.source.text.replace(f"def {spot.method.name}(", f"async def {spot.method.name}(", 1)


@kind("wrap")
def value(spot: Spot) -> str | None:
    """A keyword's value, or an assigned one, within an expression."""
    node = _value(spot)
    if node is None:
        return None
    code = spot.source.code(node)
    template = spot.rng.choice(
        [
            "({})",
            "int({})",
            "({} if True else None)",
            "({} if self.device else None)",
            "(None if self.device else {})",
            "[{}][0]",
            "[{} for _ in (0,)][0]",
            "(lambda: {})()",
            "(n := {})",
            "({} or None)",
            "({} and None)",
            "max({}, 0)",
            "{{0: {}}}[0]",
            "not {}",
            "None",
            "self.device",
            "({},)",
            "(yield {})",
            "({} + 0)",
            "({} + 1)",
        ]
    )
    return spot.source.replaced((*spot.source.span(node), template.format(code)))


def _value(spot: Spot) -> ast.expr | None:
    found: list[ast.expr] = []
    for node in ast.walk(spot.method):
        if isinstance(node, ast.Call) and spot.source.code(node.func) in CALLS:
            found += [one.value for one in node.keywords] + node.args
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value:
            found.append(node.value)
        elif isinstance(node, ast.If | ast.IfExp):
            found.append(node.test)
    related = [one for one in found if any(word in spot.source.code(one) for word in RELATED)]
    return spot.some(related if related and spot.rng.random() < 0.8 else found)


# Arguments.


@kind("arguments", harmless=True)
def shuffled(spot: Spot) -> str | None:
    call = spot.call()
    if call is None or not call.keywords or call.args:
        return None
    codes = [spot.source.code(one) for one in call.keywords]
    spot.rng.shuffle(codes)
    return spot.source.replaced(
        *((*spot.source.span(one), code) for one, code in zip(call.keywords, codes, strict=True))
    )


@kind("arguments")
def positional(spot: Spot) -> str | None:
    call = spot.call()
    if call is None or not call.keywords:
        return None
    count = spot.rng.randint(1, len(call.keywords))
    return spot.source.replaced(
        *(
            (*spot.source.span(one), spot.source.code(one.value))
            for one in call.keywords[:count]
            if one.arg
        )
    )


@kind("arguments")
def starred(spot: Spot) -> str | None:
    """Some of them in a tuple or a dictionary, as a literal or by a name."""
    call = spot.call()
    if call is None or not call.keywords:
        return None
    arguments = [one for one in call.keywords if one.arg]
    some = spot.rng.sample(arguments, spot.rng.randint(1, len(arguments)))
    rest = [spot.source.code(one) for one in call.keywords if one not in some]
    packed = ", ".join(f"{one.arg}={spot.source.code(one.value)}" for one in some)
    name = spot.source.code(call.func)
    form = spot.rng.randrange(4)
    if form == 0:
        return spot.source.swapped([call], f"{name}({', '.join([*rest, f'**dict({packed})'])})")
    if form == 1:
        return spot.source.swapped(
            [call], f"(lambda **kwargs: {name}({', '.join([*rest, '**kwargs'])}))({packed})"
        )
    holder = spot.holder(call)
    text = spot.source.swapped([call], f"{name}({', '.join([*rest, '**kwargs'])})")
    changed = "\nkwargs['max_seq_len'] = self.max_model_len" if form == 2 else ""
    return Source(text).around(_same(text, spot, holder), f"kwargs = dict({packed}){changed}\n@")


@kind("arguments")
def partial(spot: Spot) -> str | None:
    call = spot.call()
    if call is None or not call.keywords:
        return None
    count = spot.rng.randint(0, len(call.keywords))
    codes = [spot.source.code(one) for one in call.keywords]
    name = spot.source.code(call.func)
    bound, rest = ", ".join([name, *codes[:count]]), ", ".join(codes[count:])
    return spot.source.swapped([call], f"__import__('functools').partial({bound})({rest})")


@kind("arguments")
def twice_or_gone(spot: Spot) -> str | None:
    call = spot.call()
    argument = call and spot.some(call.keywords)
    if not call or not argument:
        return None
    new = spot.rng.choice([f"{spot.source.code(argument)}, {spot.source.code(argument)}", ""])
    begin, end = spot.source.span(argument)
    if not new:
        end += len(spot.source.text[end:]) - len(spot.source.text[end:].lstrip(","))
    return spot.source.replaced((begin, end, new))


@kind("arguments")
def value_by_a_local(spot: Spot) -> str | None:
    """The value has a name, which may get another one before or behind its use."""
    call = spot.call()
    argument = call and spot.some([one for one in call.keywords if one.arg])
    if not call or not argument:
        return None
    taken = spot.source.code(argument.value)
    name = spot.rng.choice(["given", argument.arg or "given"])
    between = spot.rng.choice(["", "", f"{name} = None", f"{name} += 0", f"del {name}"])
    holder = spot.holder(call)
    text = spot.source.swapped([argument.value], name)
    return Source(text).around(_same(text, spot, holder), f"{name} = {taken}\n{between}\n@")


@kind("arguments")
def one_more(spot: Spot) -> str | None:
    call = spot.call()
    if call is None:
        return None
    new = spot.rng.choice(
        [
            "seq_lens_cpu_upper_bound=None",
            "seq_lens_cpu_upper_bound=input_batch.seq_lens_cpu_upper_bound",
            "seq_lens_cpu_upper_bound=input_batch.seq_lens_cpu_upper_bound[:num_reqs]",
            "seq_lens_cpu_upper_bound=seq_lens_cpu_upper_bound",
            "positions=input_batch.positions",
            "**{}",
            "**self.device",
            "*()",
            "max_seq_len=1",
        ]
    )
    first = spot.some([*call.args, *call.keywords])
    begin = spot.source.span(first)[0] if first else spot.source.span(call)[1] - 1
    return spot.source.replaced((begin, begin, f"{new},\n            "))


@kind("arguments")
def of_the_method(spot: Spot) -> str | None:
    """The method's own parameters: keyword or positional only, with defaults, starred."""
    arguments = [one.arg for one in spot.method.args.args]
    match spot.rng.randrange(4):
        case 0:
            new = [*arguments[:2], "*", *arguments[2:]]
        case 1:
            new = [*arguments[:2], "/", *arguments[2:]]
        case 2:
            new = [*arguments[:2], "*args", "**kwargs"]
        case _:
            new = [*arguments[:1], *(f"{one}=None" for one in arguments[1:])]
    begin = spot.source.span(spot.method)[0]
    end = spot.source.span(spot.method.body[0])[0]
    indent = " " * spot.method.body[0].col_offset
    return spot.source.replaced(
        (begin, end, f"def {spot.method.name}({', '.join(new)}):\n{indent}")
    )


# Another caller.

OTHERS = [
    "build_attn_metadata(max_seq_len=1)",
    "other = build_attn_metadata",
    "other = build_attn_metadata\nother(max_seq_len=1)",
    "if self.device is None:\n    return build_attn_metadata(max_seq_len=1)",
    "if self.device:\n    return build_attn_metadata(max_seq_len=1)",
    "def other():\n    return build_attn_metadata(max_seq_len=1)",
    "def other(build_attn_metadata):\n    return build_attn_metadata(max_seq_len=1)",
    "other = lambda: build_attn_metadata(max_seq_len=1)",
    "self.build_attn_metadata(max_seq_len=1)",
    "self.device.build_attn_metadata(max_seq_len=1)",
    "super().prepare_attn(input_batch)",
    "self.draft_max_seq_len = 1",
    "self.multi_step_decode(1)",
    "self._multi_step_decode(1)",
    "MambaHybridAttnMetadata(is_prefilling=None)",
    "mamba_attn_metadata = MambaHybridAttnMetadata(is_prefilling=None)",
    "mamba_attn_metadata.num_accepted_tokens = self.device",
    "mamba_attn_metadata.num_accepted_tokens = None",
    "attn_metadata = None",
]


@kind("caller")
def before(spot: Spot) -> str | None:
    return beside(spot, OTHERS, "{}\n@")


@kind("caller")
def behind(spot: Spot) -> str | None:
    return beside(spot, OTHERS, "@\n{}")


@kind("caller")
def the_call_again(spot: Spot) -> str | None:
    call = spot.call()
    if call is None:
        return None
    holder = spot.holder(call)
    again = ast.unparse(call)
    return spot.source.around(
        [holder],
        spot.rng.choice(
            [
                f"{again}\n@",
                f"attn_metadata = {again}\n@",
                f"if self.device is None:\n    return {again}\n@",
                f"if for_capture:\n    return {again}\n@",
                f"again = lambda: {again}\n@",
                f"@\n{again}",
            ]
        ),
    )


@kind("caller", harmless=True)
def another_method(spot: Spot) -> str:
    first, _ = spot.source.lines_of(spot.method)
    body = "return build_attn_metadata(max_seq_len=self.max_model_len)"
    other = textwrap.indent(f"def other(self):\n    {body}\n", spot.indent)
    return "\n".join([*spot.source.lines[:first], other, *spot.source.lines[first:]])


@kind("caller")
def a_subclass(spot: Spot) -> str:
    name = spot.owner.name
    sub = spot.rng.choice([f"Sub{name}", name])
    body = spot.rng.choice(
        ["pass", f"def {spot.method.name}(self, *args, **kwargs):\n        return None"]
    )
    return f"{spot.source.text}\n\nclass {sub}({name}):\n    {body}\n"


# Alias.


@kind("alias")
def import_(spot: Spot) -> str:
    name = spot.rng.choice([*CALLS[:1], "InputBatch", "DefaultModelState", "DraftModelSpeculator"])
    return re.sub(
        rf"\b{name}\b", f"{name}_alias", spot.source.text.replace(f"import {name}", "import @", 1)
    ).replace("import @", f"import {name} as {name}_alias")


@kind("alias")
def module(spot: Spot) -> str:
    line = "import vllm.v1.worker.gpu.attn_utils as attn_utils\n"
    text = spot.source.text.replace("import torch\n", f"import torch\n{line}", 1)
    return text.replace(" build_attn_metadata(", " attn_utils.build_attn_metadata(")


@kind("alias")
def local_function(spot: Spot) -> str | None:
    call = spot.call()
    if call is None:
        return None
    name = spot.source.code(call.func)
    holder = spot.holder(call)
    text = spot.source.swapped([call.func], "build")
    form = spot.rng.choice(
        [name, f"globals()['{name}']", f"eval('{name}')", f"getattr(self, 'none', {name})"]
    )
    return Source(text).around(_same(text, spot, holder), f"build = {form}\n@")


@kind("alias")
def name(spot: Spot) -> str | None:
    """A name goes by another one from some statement on."""
    statement = spot.statement(top=True)
    if statement is None:
        return None
    old = spot.name()
    line = statement.lineno
    nodes = [one for one in spot.names(ast.Load) if one.id == old and one.lineno >= line]
    text = spot.source.swapped(nodes, f"{old}_alias")
    return Source(text).around(_same(text, spot, statement), f"{old}_alias = {old}\n@")


@kind("alias")
def attribute(spot: Spot) -> str | None:
    """An attribute goes by a local name."""
    statement = spot.statement(top=True)
    found = [
        one
        for one in ast.walk(spot.method)
        if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Load)
    ]
    node = spot.some([one for one in found if one.attr in RELATED] or found)
    if statement is None or node is None:
        return None
    code = spot.source.code(node)
    same = [
        one for one in found if spot.source.code(one) == code and one.lineno >= statement.lineno
    ]
    text = spot.source.swapped(same, "known")
    return Source(text).around(_same(text, spot, statement), f"known = {code}\n@")


@kind("alias")
def builtin(spot: Spot) -> str:
    """What stands for a function of Python's in the whole file, or in the class."""
    name = spot.rng.choice(["min", "max", "int"])
    new = spot.rng.choice(
        [
            f"{name} = abs",
            f"def {name}(*args):\n    return 0",
            f"from vllm import {name}",
            f"import math as {name}",
            f"class {name}:\n    pass",
            f"if True:\n    {name} = abs",
            f"for {name} in (abs,):\n    pass",
            f"from vllm.other import *\n{name}: object = abs",
            f"(({name}), other) = abs, 1",
            f"try:\n    from vllm import {name}\nexcept ImportError:\n    pass",
            f"def other():\n    global {name}\n    {name} = abs\nother()",
            f"globals()['{name}'] = abs",
        ]
    )
    at = _header(spot)
    return "\n".join([*spot.source.lines[:at], *new.split("\n"), "", *spot.source.lines[at:]])


@kind("alias")
def bound_again_in_the_module(spot: Spot) -> str:
    name = spot.rng.choice(CALLS)
    new = spot.rng.choice(
        [
            f"{name} = (lambda old: lambda **kwargs: old(**kwargs))({name})",
            f"{name} = (lambda old: lambda **kwargs: old(**dict(kwargs, max_seq_len=1)))({name})",
            f"def {name}(**kwargs):\n    return None",
            f"from vllm.other import {name}",
            f"{name} = None",
        ]
    )
    return f"{spot.source.text}\n\n{new}\n"


# Reformat.


@kind("reformat", harmless=True)
def unparsed(spot: Spot) -> str:
    return ast.unparse(spot.source.tree) + "\n"


@kind("reformat", harmless=True)
def method_unparsed(spot: Spot) -> str:
    first, last = spot.source.lines_of(spot.method)
    new = [f"{spot.indent}{line}" for line in ast.unparse(spot.method).split("\n")]
    return "\n".join([*spot.source.lines[:first], *new, *spot.source.lines[last:]])


@kind("reformat", harmless=True)
def formatted(spot: Spot) -> str:
    width = spot.rng.choice([40, 60, 100, 320])
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--quiet", "-"]
    options = ["--config", f"line-length={width}"]
    return subprocess.run(
        [*command, *options], input=spot.source.text, capture_output=True, text=True, check=True
    ).stdout


@kind("reformat", harmless=True)
def quotes(spot: Spot) -> str:
    return re.sub(r'(?<!")"([^"\'\n\\]*)"(?!")', r"'\1'", spot.source.text)


@kind("reformat", harmless=True)
def comments(spot: Spot) -> str:
    """At the ends of lines in the method, where a line may have one."""
    first, last = spot.source.lines_of(spot.method)
    lines = list(spot.source.lines)
    for number in range(first, last):
        if spot.rng.random() < 0.3 and lines[number].endswith((",", "(", ":", ")")):
            lines[number] += f"  # note {number}"
    return "\n".join(lines)


@kind("reformat", harmless=True)
def blank_lines(spot: Spot) -> str:
    first, last = spot.source.lines_of(spot.method)
    body = [
        line + spot.rng.choice(["", "", "\n", "\n\n", "\n        # a note\n"])
        for line in spot.source.lines[first:last]
    ]
    return "\n".join([*spot.source.lines[:first], *body, *spot.source.lines[last:]])


@kind("reformat", harmless=True)
def line_ends(spot: Spot) -> str:
    return spot.source.text.replace("\r\n", "\n").replace("\n", "\r\n")


@kind("reformat", harmless=True)
def indentation(spot: Spot) -> str:
    new = spot.rng.choice(["\t", "  ", "        "])
    return re.sub(
        r"^(?: {4})+", lambda m: new * (len(m[0]) // 4), spot.source.text, flags=re.MULTILINE
    )


@kind("reformat", harmless=True)
def end_of_file(spot: Spot) -> str:
    return spot.source.text.rstrip("\n") + spot.rng.choice(["", "\n\n\n", "\n# end", "\n    \n"])


@kind("reformat", harmless=True)
def byte_order_mark(spot: Spot) -> str:
    return "\ufeff" + spot.source.text.removeprefix("\ufeff")


@kind("reformat", harmless=True)
def form_feed(spot: Spot) -> str:
    first, _ = spot.source.lines_of(spot.owner)
    return "\n".join([*spot.source.lines[:first], "\f", *spot.source.lines[first:]])


@kind("reformat", harmless=True)
def call_on_one_line(spot: Spot) -> str | None:
    call = spot.call()
    return None if call is None else spot.source.swapped([call], ast.unparse(call))


@kind("reformat", harmless=True)
def parentheses(spot: Spot) -> str | None:
    node = _value(spot)
    if node is None:
        return None
    begin, end = spot.source.span(node)
    layout = spot.rng.choice(["({})", "(\n{}\n)", "(  # a note\n{}\n)", "(({}))"])
    return spot.source.replaced((begin, end, layout.format(spot.source.code(node))))


@kind("reformat", harmless=True)
def continuation(spot: Spot) -> str | None:
    node = _value(spot)
    if node is None:
        return None
    begin, _ = spot.source.span(node)
    return spot.source.replaced((begin, begin, "\\\n            "))


@kind("reformat")
def one_line(spot: Spot) -> str | None:
    """Two statements on one line, or a branch and what is in it."""
    statement = spot.statement()
    if statement is None:
        return None
    code = ast.unparse(statement)
    if "\n" in code:
        return None
    other = spot.rng.choice(["pass; {}", "{}; pass", "{};", "if True: {}"])
    first, last = spot.source.lines_of(statement)
    new = spot.source.indent(statement) + other.format(code)
    return "\n".join([*spot.source.lines[:first], new, *spot.source.lines[last:]])


@kind("reformat", harmless=True)
def trailing_spaces(spot: Spot) -> str:
    first, last = spot.source.lines_of(spot.method)
    body = [line + " " * spot.rng.randrange(2) for line in spot.source.lines[first:last]]
    return "\n".join([*spot.source.lines[:first], *body, *spot.source.lines[last:]])


@kind("reformat", harmless=True)
def annotation(spot: Spot) -> str:
    """As strings, or gone."""
    found = [one for one in ast.walk(spot.method.args) if isinstance(one, ast.arg)]
    edits = []
    for one in found:
        if one.annotation and spot.rng.random() < 0.5:
            code = spot.source.code(one.annotation)
            edits.append((*spot.source.span(one.annotation), f"'{' '.join(code.split())}'"))
    return spot.source.replaced(*(edit for edit in edits if '"' not in edit[2]))


# Bind again.


@kind("rebind")
def of_a_name(spot: Spot) -> str | None:
    statement = spot.statement()
    if statement is None:
        return None
    name = spot.rng.choice([spot.name(), spot.rng.choice([*RELATED, "min", "max", "int", "self"])])
    new = spot.rng.choice(
        [
            "{0} = None",
            "{0} = 1",
            "{0} = {0}",
            "{0}: int",
            "{0}: int = 1",
            "{0} += 1",
            "del {0}",
            "({0} := 1)",
            "for {0} in range(1, 2):\n    pass",
            "with self.device as {0}:\n    pass",
            "import math as {0}",
            "from math import pi as {0}",
            "def {0}():\n    pass",
            "class {0}:\n    pass",
            "try:\n    raise ValueError\nexcept ValueError as {0}:\n    pass",
            "{0}, other = 1, 2",
            "[{0}, *other] = 1, 2",
            "*{0}, other = 1, 2",
            "{0}, {0} = 1, 2",
            "[{0} for {0} in ()]",
            "[({0} := 1) for other in (1,)]",
            "lambda {0}: {0}",
            "match 1:\n    case {0}:\n        pass",
            "match [1]:\n    case [*{0}]:\n        pass",
            "match {{1: 1}}:\n    case {{**{0}}}:\n        pass",
            "def other():\n    nonlocal {0}\n    {0} = 1\nother()",
            "def other({0}):\n    return {0}",
            "if self.device:\n    {0} = 1",
            "if self.device is None:\n    {0} = 1",
            "while (({0} := 1) and self.device is None):\n    pass",
            "other = ({0} := 1)",
            "print(f'{{({0} := 1)}}')",
            "exec('{0} = 1')",
            "locals()['{0}'] = 1",
            "globals()['{0}'] = lambda *args: 1",
        ]
    )
    side = spot.rng.choice(["{}\n@", "@\n{}"])
    return spot.source.around([statement], side.format(new.format(name)))


@kind("rebind")
def of_an_attribute(spot: Spot) -> str | None:
    statement = spot.statement()
    if statement is None:
        return None
    found = {
        spot.source.code(one)
        for one in ast.walk(spot.method)
        if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name)
    }
    found |= {
        "self.draft_max_seq_len",
        "self.max_model_len",
        "self.vllm_config",
        "self.vllm_config.num_speculative_tokens",
        "self.num_speculative_steps",
        "input_batch.seq_lens_cpu_upper_bound",
    }
    near = sorted(one for one in found if one.rpartition(".")[2] in [*RELATED, "vllm_config"])
    chosen = spot.some(near if spot.rng.random() < 0.8 else sorted(found)) or "self.device"
    target, _, attribute = chosen.rpartition(".")
    new = spot.rng.choice(
        [
            "{0} = 1",
            "{0} = {0}",
            "{0} += 1",
            "{0}: int = 1",
            "del {0}",
            "{0}, other = 1, 2",
            "for {0} in (1, 2):\n    pass",
            "with self.device as {0}:\n    pass",
            "setattr({1}, '{2}', 1)",
            "object.__setattr__({1}, '{2}', 1)",
            "{1}.__dict__['{2}'] = 1",
            "{1}.__dict__.update({2}=1)",
            "vars({1})['{2}'] = 1",
            "alias = {1}\nalias.{2} = 1",
            "if self.device:\n    {0} = 1",
            "if self.device is None:\n    {0} = 1",
            "def other():\n    {0} = 1\nother()",
            "({1}).{2} = 1",
            "[{1}][0].{2} = 1",
            "delattr({1}, '{2}')",
        ]
    )
    side = spot.rng.choice(["{}\n@", "@\n{}"])
    return spot.source.around([statement], side.format(new.format(chosen, target, attribute)))


@kind("rebind")
def of_an_attribute_in_the_class(spot: Spot) -> str:
    name = spot.rng.choice(
        ["draft_max_seq_len", "max_model_len", "vllm_config", "num_speculative_steps"]
    )
    new = spot.rng.choice(
        [
            f"    {name} = 1\n",
            f"    @property\n    def {name}(self):\n        return 1\n",
            "    def __getattr__(self, name):\n        return 1\n",
            "    __slots__ = ('other',)\n",
            "    def __setattr__(self, name, value):\n        self.__dict__[name] = value\n",
            "    def __setattr__(self, name, value):\n        self.__dict__[name] = 1\n",
            f"    def __getattribute__(self, name):\n"
            f"        return 1 if name == '{name}' else super().__getattribute__(name)\n",
        ]
    )
    first, _ = spot.source.lines_of(spot.method)
    return "\n".join([*spot.source.lines[:first], new, *spot.source.lines[first:]])


# Define again.


@kind("define")
def method_again(spot: Spot) -> str:
    first, last = spot.source.lines_of(spot.method)
    lines = spot.source.lines
    name = spot.method.name
    again = spot.rng.choice(
        [
            ["", *lines[first:last]],
            ["", f"    def {name}(self, *args, **kwargs):", "        return None"],
            ["", "    if True:", f"        def {name}(self, *args): ..."],
            ["", f"    {name} = None"],
            ["", f"    {name}: object = None"],
            ["", f"    {name} = (lambda old: lambda *a, **k: old(*a, **k))({name})"],
            ["", f"    {name} = staticmethod({name})"],
            ["", f"    {name}, other = None, None"],
            ["", f"    other = {name}"],
            ["", f"    del {name}"],
            ["", f"    for {name} in (None,): pass"],
            ["", f"    import math as {name}"],
            ["", f"    async def {name}(self, *args): ..."],
            ["", f"    class {name}: ..."],
            ["", f"    ({name} := None)"],
            ["", f"    with open(__file__) as {name}: pass"],
            ["", "    try: ...", f"    except ValueError as {name}: ..."],
            ["", f"    vars()['{name}'] = None"],
            ["", f"    exec('{name} = None')"],
        ]
    )
    if spot.rng.random() < 0.5:
        return "\n".join([*lines[:last], *again, *lines[last:]])
    return "\n".join([*lines[:first], *again, *lines[first:]])


@kind("define")
def class_again(spot: Spot) -> str:
    name, function = spot.owner.name, spot.method.name
    again = spot.rng.choice(
        [
            f"class {name}:\n    pass",
            f"class {name}({name}):\n    pass",
            f"class {name}({name}):\n    def {function}(self, *args):\n        return None",
            f"if True:\n    class {name}: ...",
            f"{name} = object",
            f"{name} = {name}",
            f"{name}: object = object",
            f"{name}.{function} = lambda self, *args, **kwargs: None",
            f"setattr({name}, '{function}', None)",
            f"{name}.{function} = (lambda old: lambda *a, **k: old(*a, **k))({name}.{function})",
            f"del {name}",
            f"from vllm.other import {name}",
            "from vllm.other import *",
            f"import math as {name}",
            f"def {name}(*args):\n    return None",
            f"({name}, other) = object, 1",
            f"for {name} in (object,): pass",
            f"globals()['{name}'] = object",
            f"del {name}.{function}",
            f"({name} := object)",
            f"type.__setattr__({name}, '{function}', None)",
            f"other = {name}\nother.{function} = None",
        ]
    )
    text = spot.source.text
    if spot.rng.random() < 0.7:
        return f"{text}\n\n{again}\n"
    at = _header(spot)
    return "\n".join([*spot.source.lines[:at], *again.split("\n"), "", *spot.source.lines[at:]])


@kind("define")
def class_decorated(spot: Spot) -> str:
    first, _ = spot.source.lines_of(spot.owner)
    new = spot.rng.choice(
        [
            "@(lambda cls: cls)",
            "@(lambda cls: object)",
            f"@(lambda cls: setattr(cls, '{spot.method.name}', None) or cls)",
            "@dataclass",
        ]
    )
    return "\n".join([*spot.source.lines[:first], new, *spot.source.lines[first:]])


@kind("define")
def class_in_a_branch(spot: Spot) -> str:
    return spot.source.around(
        [spot.owner],
        spot.rng.choice(
            [
                "if True:\n    @",
                "if False:\n    @",
                "try:\n    @\nfinally:\n    pass",
                "class Outer:\n    @",
            ]
        ),
    )


@kind("define")
def method_in_a_branch(spot: Spot) -> str:
    return spot.source.around(
        [spot.method],
        spot.rng.choice(
            [
                "if True:\n    @",
                "if False:\n    @",
                "try:\n    @\nfinally:\n    pass",
                "for _ in (0,):\n    @",
            ]
        ),
    )


@kind("define")
def bases(spot: Spot) -> str:
    """Another base before or behind, here or elsewhere, a metaclass, or none at all."""
    name = spot.owner.name
    old = ", ".join(spot.source.code(base) for base in spot.owner.bases)
    body = spot.rng.choice(
        [
            "pass",
            f"def {spot.method.name}(self, *args, **kwargs):\n        return None",
            "def __init_subclass__(cls):\n        cls.prepare_attn = cls.propose = None",
            "draft_max_seq_len = 1",
        ]
    )
    form = spot.rng.choice(
        ["Extra, {}", "{}, Extra", "Elsewhere, {}", "{}, Elsewhere", "{}, metaclass=type", "",
         "{}, *[]", "__import__('vllm').Base, {}", "(lambda: object)(), {}", "object"]
    )  # fmt: skip
    new = form.format(old).strip(", ")
    extra = "from vllm.other import Elsewhere\n\n\n" if "Elsewhere" in form else ""
    extra += f"class Extra:\n    {body}\n\n\n" if "Extra" in form else ""
    head = re.compile(rf"^class {name}\b.*?:\n", re.MULTILINE | re.DOTALL)
    return head.sub(lambda _: f"{extra}class {name}({new}):\n", spot.source.text, count=1)


# The fix in another form, right or nearly so.


@kind("form")
def maximum_before_the_call(spot: Spot) -> str | None:
    call = spot.call()
    argument = call and [one for one in call.keywords if one.arg == "max_seq_len"]
    if not call or not argument:
        return None
    rows = spot.rng.choice(["[:num_reqs]", "[:num_reqs]", "[: input_batch.num_reqs]", "", "[:1]"])
    bound = f"input_batch.seq_lens_cpu_upper_bound{rows}"
    longest = spot.rng.choice([f"{bound}.max().item()", f"int({bound}.max().item())"])
    model = "self.max_model_len"
    code = spot.rng.choice(
        [
            f"if for_capture:\n    longest = {model}\nelse:\n    longest = {longest}",
            f"if not for_capture:\n    longest = {longest}\nelse:\n    longest = {model}",
            f"longest = {model}\nif not for_capture:\n    longest = {longest}",
            f"longest = {model} if for_capture else {longest}",
            f"longest = {longest} if not for_capture else {model}",
            f"longest = {longest}",
            f"longest = {model}",
            f"longest = {longest} if for_capture else {model}",
            f"longest = {model}\nlongest = {model} if for_capture else {longest}",
            f"longest = {model} if for_capture else {longest}\nlongest = {model}",
            f"bound = {bound}\nlongest = {model} if for_capture else bound.max().item()",
            f"bound = {bound}\nbound = None\n"
            f"longest = {model} if for_capture else bound.max().item()",
            f"longest = (lambda: {longest})() if not for_capture else {model}",
            f"max_seq_len = {model} if for_capture else {longest}\nlongest = max_seq_len",
        ]
    )
    holder = spot.holder(call)
    text = spot.source.swapped([argument[0].value], "longest")
    return Source(text).around(_same(text, spot, holder), f"{code}\n@")


@kind("form")
def condition(spot: Spot) -> str | None:
    guards = [
        one
        for one in spot.method.body
        if isinstance(one, ast.If) and "for_capture" in spot.source.code(one.test)
    ]
    guard = spot.some(guards)
    if guard is None:
        return None
    config = "self.vllm_config"
    new = spot.rng.choice(
        [
            f"not for_capture and {config}.num_speculative_tokens > 0",
            f"not for_capture and {config}.num_speculative_tokens >= 1",
            f"not for_capture and {config}.num_speculative_tokens",
            f"{config}.num_speculative_tokens > 0 and not for_capture",
            f"not for_capture and {config}.num_speculative_tokens > 1",
            f"not for_capture or {config}.num_speculative_tokens > 0",
            f"not for_capture and {config}.num_speculative_tokens > 0 or True",
            f"not (for_capture or {config}.num_speculative_tokens == 0)",
            f"for_capture is False and {config}.num_speculative_tokens > 0",
            "not for_capture and True",
            "not (for_capture)",
            "for_capture is False",
            "for_capture == False",
            "not not not for_capture",
            "for_capture",
            f"(n := {config}.num_speculative_tokens) > 0 and not for_capture",
            f"not for_capture and {config}.speculative_config is not None",
        ]
    )
    return spot.source.replaced((*spot.source.span(guard.test), new))


@kind("form")
def condition_by_a_local(spot: Spot) -> str | None:
    guards = [
        one
        for one in spot.method.body
        if isinstance(one, ast.If) and "for_capture" in spot.source.code(one.test)
    ]
    guard = spot.some(guards)
    if guard is None:
        return None
    gated = f"{spot.source.code(guard.test)} and self.vllm_config.num_speculative_tokens > 0"
    code = spot.rng.choice(
        [
            f"fill = {gated}",
            f"fill = {spot.source.code(guard.test)}",
            f"fill = {gated}\nfill = True",
            f"fill = {spot.source.code(guard.test)}\nif fill:\n    fill = {gated}",
            f"fill = {gated} if self.device else {gated}",
        ]
    )
    text = spot.source.swapped([guard.test], "fill")
    return Source(text).around(_same(text, spot, guard), f"{code}\n@")


@kind("form")
def tensors_set_behind(spot: Spot) -> str | None:
    """What the guard fills is set again, or emptied."""
    found = [
        one
        for one in spot.method.body
        if isinstance(one, ast.Assign) and "MambaHybridAttnMetadata" in spot.source.code(one.value)
    ]
    statement = spot.some(found)
    if statement is None:
        return None
    tensor = spot.rng.choice(["num_accepted_tokens", "num_decode_draft_tokens_cpu"])
    none = f"{tensor} = num_decode_draft_tokens_cpu = num_accepted_tokens = None"
    new = spot.rng.choice(
        [
            f"if self.vllm_config.num_speculative_tokens == 0:\n    {none}",
            f"if not self.vllm_config.num_speculative_tokens:\n    {none}",
            f"if self.vllm_config.num_speculative_tokens > 0:\n    {tensor} = None",
            f"{tensor} = {tensor} if self.vllm_config.num_speculative_tokens else None",
            f"if {tensor} is None:\n    {tensor} = self.num_accepted_tokens_gpu",
            none,
        ]
    )
    return spot.source.around([statement], f"{new}\n@")


@kind("form")
def draft_maximum(spot: Spot) -> str | None:
    statement = spot.statement(top=True)
    if statement is None:
        return None
    longest = "input_batch.seq_lens_cpu_upper_bound[:num_reqs].max().item()"
    limit = "self.draft_max_seq_len"
    new = spot.rng.choice(
        [
            f"{limit} = min({longest} + self.num_speculative_steps, self.max_model_len)",
            f"{limit} = min(self.max_model_len, {longest} + self.num_speculative_steps)",
            f"{limit} = {longest} + self.num_speculative_steps",
            f"{limit} = min({longest}, self.max_model_len)",
            f"{limit} = self.max_model_len",
            f"longest = {longest}\n"
            f"{limit} = min(longest + self.num_speculative_steps, self.max_model_len)",
            f"if self.device:\n"
            f"    {limit} = min({longest} + self.num_speculative_steps, self.max_model_len)",
        ]
    )
    side = spot.rng.choice(["{}\n@", "@\n{}"])
    return spot.source.around([statement], side.format(new))


# A function at the top level.


def _top(spot: Spot) -> str:
    """The function's name. Raises LookupError for a method."""
    if spot.class_ is not None:
        raise LookupError(f"{spot.method.name} is a method")
    return spot.method.name


def _lines(spot: Spot) -> tuple[int, int]:
    return spot.source.lines_of(spot.method)


def _with_line(spot: Spot, new: str) -> str:
    """Ahead of the first definition, of the function, or behind all."""
    lines = spot.source.lines
    at = spot.rng.choice([_header(spot), spot.source.lines_of(spot.method)[0], len(lines)])
    return "\n".join([*lines[:at], *new.split("\n"), "", *lines[at:]])


@kind("function")
def function_bound_again(spot: Spot) -> Change:
    name = _top(spot)
    bare = f"getattr({name}, '__wrapped__', {name})"
    again = textwrap.indent("\n".join(spot.source.lines[slice(*_lines(spot))]), "    ")
    new = spot.rng.choice(
        [
            f"if True:\n{again}",
            f"def other():\n    global {name}\n{again}\nother()",
            f"from vllm.v1.worker.gpu.moved import {name}",
            "from vllm.v1.worker.gpu.moved import *",
            f"{name} = {bare}",
            f"class Other:\n    global {name}\n    {name} = {bare}",
            f"def other():\n    globals()['{name}'] = {bare}\nother()",
            f'exec(\'{name} = globals()["{name}"].__dict__.get("__wrapped__", {name})\')',
            f"{name} = {name}",
            f"{name} = None",
            f"{name}: object = None",
            f"{name} = (lambda old: lambda *a, **k: old(*a, **k))({name})",
            f"{name} = (lambda old: lambda *a, **k: None)({name})",
            f"other = {name}\n{name} = other",
            f"other = {name}",
            f"def {name}(*args, **kwargs):\n    return None",
            f"def {name}(*args, old={name}, **kwargs):\n    return old(*args, **kwargs)",
            f"async def {name}(*args, **kwargs):\n    return None",
            f"class {name}:\n    pass",
            f"if True:\n    def {name}(*args, **kwargs):\n        return None",
            f"try:\n    from vllm.other import {name}\nexcept ImportError:\n    pass",
            f"from vllm.other import {name}",
            "from vllm.other import *",
            f"import math as {name}",
            f"for {name} in (None,):\n    pass",
            f"with torch.other as {name}:\n    pass",
            f"({name} := None)",
            f"{name}, other = None, None",
            f"del {name}",
            f"globals()['{name}'] = None",
            f"exec('{name} = None')",
            f"def other():\n    global {name}\n    {name} = None\nother()",
            f"def other():\n    global {name}\n    def {name}(*args, **kwargs): ...\nother()",
            f"def other(old):\n    globals()['{name}'] = lambda *a, **k: None\nother({name})",
            f"def other():\n    vars(__import__('sys').modules[__name__])['{name}'] = 1\nother()",
            f"class Other:\n    global {name}\n    {name} = None",
            f"class Other:\n    {name} = None",
        ]
    )
    return Change(_with_line(spot, new), beside={"moved.py": spot.source.text})


@kind("function")
def function_decorated(spot: Spot) -> str:
    """Once or twice, above or below what is there."""
    _top(spot)
    lines = list(spot.source.lines)
    for _ in range(spot.rng.randint(1, 2)):
        new = spot.rng.choice(
            [
                "(lambda function: function)",
                "(lambda function: lambda *args, **kwargs: function(*args, **kwargs))",
                "(lambda function: lambda *args, **kwargs: None)",
                "(lambda function: None)",
                "torch.no_grad()",
                "torch.inference_mode()",
                "torch.compile",
                "staticmethod",
                "checked",
                "(checked)",
                "checked()",
                "contract.checked",
            ]
        )
        first = spot.source.lines_of(spot.method)[0]
        lines.insert(spot.rng.choice([first, spot.method.lineno - 1]), f"@{new}")
    return "\n".join(lines)


@kind("function")
def function_in_a_branch(spot: Spot) -> str:
    _top(spot)
    return spot.source.around(
        [spot.method],
        spot.rng.choice(
            [
                "if True:\n    @",
                "if False:\n    @",
                "if torch.other:\n    @",
                "try:\n    @\nfinally:\n    pass",
                "for _ in (0,):\n    @",
                "class Outer:\n    @",
                f"def outer():\n    global {spot.method.name}\n    @\nouter()",
                f"def outer():\n    @\n    return {spot.method.name}\n{spot.method.name} = outer()",
            ]
        ),
    )


@kind("function")
def function_renamed(spot: Spot) -> Change | str:
    """And what is called so then is it, a wrapper of it, or nothing."""
    name = _top(spot)
    text = re.sub(rf"\b{name}\b", f"{name}_v2", spot.source.text)
    new = spot.rng.choice(
        [
            "",
            f"{name} = {name}_v2",
            f"def {name}(*args, **kwargs):\n    return {name}_v2(*args, **kwargs)",
            f"def {name}(**kwargs):\n    return {name}_v2(**kwargs)",
            f"class {name}:\n    def __new__(cls, **kwargs):\n        return {name}_v2(**kwargs)",
        ]
    )
    if not new:
        return Change(text, {f"{spot.path}:{name}": f"{name}_v2"})
    return f"{text}\n\n{new}\n"


@kind("function")
def function_to_another_file(spot: Spot) -> Change:
    """Alone, with all beside it, or with another one left behind."""
    name = _top(spot)
    if spot.rng.random() < 0.3:
        return Change(spot.source.text, {spot.path: f"{spot.path.rpartition('/')[0]}/moved.py"})
    left = spot.rng.choice(
        [
            f"from vllm.v1.worker.gpu.moved import {name}\n",
            "from vllm.v1.worker.gpu.moved import *\n",
            f"from vllm.v1.worker.gpu import moved\n\n\ndef {name}(**kwargs):\n"
            f"    return moved.{name}(**kwargs)\n",
        ]
    )
    return Change(left, beside={"moved.py": spot.source.text})


@kind("function")
def decorator_imported(spot: Spot) -> str:
    """What the decorator is called is something already, in one way or another."""
    _top(spot)
    contract = "vllm.v1.worker.gpu.attn_metadata_contract"
    new = spot.rng.choice(
        [
            f"from {contract} import checked",
            f"from {contract} import checked\nfrom {contract} import checked",
            f"from {contract} import check_metadata, checked",
            f"from {contract} import check_metadata as checked",
            f"from {contract} import checked as check",
            f"from {contract} import *",
            f"import {contract}",
            f"import {contract} as checked",
            f"import {contract} as contract",
            "from vllm.v1.worker.gpu import attn_metadata_contract as checked",
            "from .attn_metadata_contract import checked",
            "from vllm.other import checked",
            f"if True:\n    from {contract} import checked",
            f"if False:\n    from {contract} import checked",
            f"try:\n    from {contract} import checked\nexcept ImportError:\n    pass",
            f"from {contract} import checked; other = 1",
            f"from {contract} import checked\nchecked = (lambda function: function)",
            f"from {contract} import checked\ndel checked",
            "def checked(function):\n    return function",
            "checked = None",
            "class Other:\n    checked = None",
            "def other(checked):\n    return checked",
        ]
    )
    return _with_line(spot, new)


@kind("function", harmless=True)
def imports_in_another_order(spot: Spot) -> str:
    """And with comments and blank lines between them."""
    _top(spot)
    found = [
        node
        for node in spot.source.tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm")
    ]
    codes = [ast.unparse(node) for node in found]
    spot.rng.shuffle(codes)
    gaps = ["", "", "\n", "\n\n", "# a note\n", "\n# a note\n"]
    return spot.source.replaced(
        *(
            (*spot.source.span(node), spot.rng.choice(gaps) + code)
            for node, code in zip(found, codes, strict=True)
        )
    )


@kind("function")
def imports_of_another_form(spot: Spot) -> str:
    """Those of vLLM relative, in a branch, or of its modules alone."""
    _top(spot)
    form = spot.rng.choice(["relative", "branch", "module"])
    edits = []
    for node in spot.source.tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm"):
            code = ast.unparse(node)
            new = {
                "relative": code.replace("from vllm.v1.worker.gpu.", "from ."),
                "branch": f"if True:\n    {code}",
                "module": f"import {node.module}",
            }[form]
            edits.append((*spot.source.span(node), new))
    return spot.source.replaced(*edits)


# Metadata that a method makes itself.


def _metadata(spot: Spot) -> ast.stmt | None:
    """The statement that makes it."""
    return spot.some(
        [
            one
            for one in spot.method.body
            if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "common_attn_metadata"
        ]
    )


@kind("metadata")
def metadata_afterwards(spot: Spot) -> str | None:
    """Something is done with it, or it is another one, before a builder gets it."""
    statement = _metadata(spot)
    if statement is None:
        return None
    metadata = "common_attn_metadata"
    new = spot.rng.choice(
        [
            f"{metadata}.max_seq_len = 1",
            f"{metadata} = {metadata}",
            f"{metadata} = self.device.replace({metadata}, max_seq_len=1)",
            f"{metadata}: object = {metadata}",
            f"if for_capture:\n    {metadata} = None",
            f"other = {metadata}",
            f"other = {metadata}\nother.max_seq_len = 1",
            f"{metadata}, other = {metadata}, None",
            f"self.encoder_attn_groups[0].get_metadata_builder(0).build(0, {metadata})",
            f"[group.get_metadata_builder(0).build(0, {metadata}) for group in ()]",
            f"def build(builder):\n    return builder.build(0, {metadata})",
            f"for_capture = not for_capture\nother = {metadata}",
            "self.encoder_attn_groups = []",
            "self.encoder_attn_groups = list(self.encoder_attn_groups)",
        ]
    )
    behind = spot.method.body[spot.method.body.index(statement) :][: spot.rng.randint(1, 2)]
    return spot.source.around(behind, f"@\n{new}")


@kind("metadata")
def metadata_checked(spot: Spot) -> str | None:
    """The check in another form, right or nearly so."""
    made = _metadata(spot)
    statement = made if spot.rng.random() < 0.7 else spot.statement(top=True)
    if made is None or statement is None:
        return None
    check = "check_metadata(common_attn_metadata, self.encoder_attn_groups, for_capture)"
    new = spot.rng.choice(
        [
            check,
            check,
            check,
            f"if for_capture:\n    {check}",
            f"if not for_capture:\n    {check}",
            f"if self.encoder_attn_groups:\n    {check}",
            f"if self.device is None:\n    return {{}}\n{check}",
            f"other = {check}",
            f"(lambda: {check})()",
            f"lambda: {check}",
            f"{check} if for_capture else None",
            f"for _ in ():\n    {check}",
            check.replace("for_capture)", "False)"),
            check.replace("(common_attn_metadata", "(None"),
            check.replace("for_capture)", "for_capture=for_capture)"),
            f"groups = self.encoder_attn_groups\n{check.replace('self.encoder_attn_', '')}",
            f"check_metadata = print\n{check}",
            f"{check}\n{check}",
        ]
    )
    source = spot.rng.choice(["attn_metadata_contract", "attn_metadata_contract", "other"])
    line = f"from vllm.v1.worker.gpu.{source} import check_metadata\n"
    text = spot.source.around([statement], f"@\n{new}")
    return text.replace("import torch\n", f"import torch\n{line}", 1)


# What the patches of the group `stable` are about, right or nearly so.


def _insert(spot: Spot, statement: ast.stmt | None, new: str) -> str | None:
    """The text with `new` on one side of a statement."""
    if statement is None:
        return None
    return spot.source.around([statement], spot.rng.choice([f"{new}\n@", f"@\n{new}"]))


RESETS = [
    "self.num_accepted_tokens_gpu[req_index].fill_(1)",
    "self.num_accepted_tokens_gpu[req_index] = 1",
    "self.num_accepted_tokens_gpu[req_index].fill_(0)",
    "self.num_accepted_tokens_gpu[0].fill_(1)",
    "self.num_accepted_tokens_gpu.fill_(1)",
    "self.num_accepted_tokens_gpu[req_index].fill_(1)\n"
    "self.num_accepted_tokens_gpu[req_index].fill_(2)",
    "self.num_accepted_tokens_gpu[req_index] = 1\nself.num_accepted_tokens_gpu[req_index] = 2",
    "if self.vllm_config.num_speculative_tokens:\n"
    "    self.num_accepted_tokens_gpu[req_index].fill_(1)",
    "if self.device is None:\n    return\nself.num_accepted_tokens_gpu[req_index].fill_(1)",
    "if self.device:\n    return\nself.num_accepted_tokens_gpu[req_index].fill_(1)",
    "req_index = 0\nself.num_accepted_tokens_gpu[req_index].fill_(1)",
    "counts = self.num_accepted_tokens_gpu\ncounts[req_index].fill_(1)",
    "self.num_accepted_tokens_gpu = self.device",
    "pass",
]


@kind("stable")
def slot_reset(spot: Spot) -> str | None:
    """In the method that there is, or in a new one, which may call what it overrides."""
    if spot.owner.name != "MambaHybridModelState":
        return None
    reset = spot.rng.choice(RESETS)
    own = [one for one in spot.owner.body if getattr(one, "name", "") == "add_request"]
    if own and isinstance(own[0], ast.FunctionDef):
        return _insert(spot, spot.some(own[0].body), reset)
    first, last = spot.rng.choice(
        [
            ("super().add_request(req_index, new_req_data)", ""),
            ("super().add_request(req_index, new_req_data)", ""),
            ("", "super().add_request(req_index, new_req_data)"),
            ("DefaultModelState.add_request(self, req_index, new_req_data)", ""),
            ("super().add_request(0, new_req_data)", ""),
            ("", ""),
        ]
    )
    body = textwrap.indent("\n".join(filter(None, [first, reset, last])), "    ")
    head = spot.rng.choice(
        ["def add_request(self, req_index, new_req_data):", "def add_request(self, *req_index):"]
    )
    return spot.source.around([spot.method], f"{head}\n{body}\n\n@")


@kind("stable")
def old_states_cleared(spot: Spot) -> str | None:
    if spot.owner.name != "MambaHybridModelState" or spot.method.name != "prepare_attn":
        return None
    clear = "clear_old_states(input_batch, block_tables, kv_cache_config, self.vllm_config)"
    new = spot.rng.choice(
        [
            *[clear] * 3,
            f"if for_capture:\n    {clear}",
            f"if not for_capture:\n    {clear}",
            f"if self.device is None:\n    return None\n{clear}",
            f"cleared = {clear}",
            f"(lambda: {clear})()",
            f"lambda: {clear}",
            f"for _ in ():\n    {clear}",
            clear.replace("self.vllm_config", "None"),
            clear.replace("(input_batch, block_tables", "(input_batch, None"),
            clear.replace("self.vllm_config", "vllm_config=self.vllm_config"),
            f"groups = kv_cache_config\n{clear.replace('kv_cache_config', 'groups')}",
            f"block_tables = None\n{clear}",
            f"clear_old_states = print\n{clear}",
            f"{clear}\n{clear}",
        ]
    )
    source = spot.rng.choice(["recycled_mamba_state", "recycled_mamba_state", "other"])
    text = _insert(spot, spot.statement(top=True), new)
    line = f"import torch\nfrom vllm.v1.worker.gpu.{source} import clear_old_states\n"
    return text.replace("import torch\n", line, 1) if text else None


@kind("stable")
def first_chunks_split(spot: Spot) -> str | None:
    """The builder of gated delta nets asks for first chunks as prefills, or for something else."""
    calls = [
        node
        for node in ast.walk(spot.method)
        if isinstance(node, ast.Call) and "split_decodes" in spot.source.code(node.func)
    ]
    call = spot.some(calls)
    if call is None:
        return None
    name = "treat_short_extends_as_decodes"
    value = spot.rng.choice(["False", "True", "None", "not True", "self.use_spec_decode", ""])
    there = [one for one in call.keywords if one.arg == name]
    if not value and there:
        return spot.source.swapped([there[0].value], "0")
    if there:
        return spot.source.swapped([there[0].value], value)
    begin, end = spot.source.span(call)
    code = spot.source.text[begin:end].rstrip()[:-1].rstrip().rstrip(",")
    return spot.source.replaced((begin, end, f"{code}, {name}={value or '0'})"))


ROWS = """\
is_prefill = (
    self.req_states.num_computed_prefill_tokens[idx_mapping_np]
    < self.req_states.prefill_len.np[idx_mapping_np]
)
order = np.argsort(is_prefill, kind="stable")
req_ids = [req_ids[i] for i in order]
num_scheduled_tokens = num_scheduled_tokens[order]
idx_mapping_np = idx_mapping_np[order]"""


@kind("stable")
def rows_ordered(spot: Spot) -> str | None:
    if spot.method.name != "prepare_inputs":
        return None
    lines = ROWS.split("\n")
    new = spot.rng.choice(
        [
            ROWS,
            ROWS,
            ROWS.replace(', kind="stable"', ""),
            ROWS.replace("np.argsort", "order = np.argsort"),
            "\n".join(lines[:-1]),
            "\n".join(lines[:4]),
            f"{lines[-1]}\n{ROWS}".replace("[order]", "", 1),
            "if self.device:\n" + textwrap.indent(ROWS, "    "),
            "order = None",
            "is_prefill = None",
            "req_ids = [*req_ids]",
            "req_ids = req_ids[::-1]",
            "idx_mapping_np = idx_mapping_np[:]",
            "by_row = [req_id for req_id in req_ids]\nself.device.note(by_row)",
            "first = req_ids[0]",
        ]
    )
    near = [
        one
        for one in spot.method.body
        if any(word in spot.source.code(one) for word in ("idx_mapping_np", "req_ids"))
    ]
    return _insert(spot, spot.some(near), new)


DRAFT_BOUNDS = [
    "self.draft_seq_lens_cpu_upper_bound = torch.nn.functional.pad(\n"
    "    torch.clamp(\n"
    "        input_batch.seq_lens_cpu_upper_bound[:num_reqs] + self.num_speculative_steps,\n"
    "        max=self.max_model_len,\n"
    "    ),\n"
    "    (0, self.max_num_reqs - num_reqs),\n"
    ")",
    "self.draft_seq_lens_cpu_upper_bound = torch.nn.functional.pad(\n"
    "    input_batch.seq_lens_cpu_upper_bound[:num_reqs] + self.num_query_per_req,\n"
    "    (0, self.max_num_reqs - num_reqs),\n"
    ")",
    "self.draft_seq_lens_cpu_upper_bound = torch.nn.functional.pad(\n"
    "    input_batch.seq_lens_cpu_upper_bound[:num_reqs],\n"
    "    (0, self.max_num_reqs - num_reqs),\n"
    ")",
    "self.draft_seq_lens_cpu_upper_bound = input_batch.seq_lens_cpu_upper_bound",
    "self.draft_seq_lens_cpu_upper_bound = None",
    "self.draft_seq_lens_cpu_upper_bound = torch.zeros(\n"
    '    self.max_num_reqs, dtype=torch.int32, device="cpu"\n)',
    "self.draft_seq_lens_cpu_upper_bound = torch.zeros(2, dtype=torch.int32)",
    "num_reqs = num_reqs + 0",
    "self.max_num_reqs = 4",
]


@kind("stable")
def drafts_bounded(spot: Spot) -> str | None:
    if spot.method.name not in ("propose", "__init__") or "Speculator" not in spot.owner.name:
        return None
    return _insert(spot, spot.statement(top=True), spot.rng.choice(DRAFT_BOUNDS))


@kind("stable")
def draft_bound_handed_over(spot: Spot) -> str | None:
    """The keyword with one value or another, beside the maximum."""
    bounds = ["self.draft_seq_lens_cpu_upper_bound", "None", "seq_lens_cpu_upper_bound"]
    maximum = [
        one
        for node in ast.walk(spot.method)
        if isinstance(node, ast.Call) and spot.source.code(node.func) == "build_attn_metadata"
        for one in node.keywords
        if one.arg in ("max_seq_len", "seq_lens_cpu_upper_bound")
    ]
    found = spot.some(maximum)
    if found is None:
        return None
    value = spot.rng.choice(bounds)
    if found.arg == "seq_lens_cpu_upper_bound":
        return spot.source.swapped([found.value], value)
    begin, _ = spot.source.span(found)
    return spot.source.replaced((begin, begin, f"seq_lens_cpu_upper_bound={value}, "))


@kind("stable")
def step_of_the_prefill(spot: Spot) -> str | None:
    found = spot.some(
        [
            node
            for node in ast.walk(spot.method)
            if isinstance(node, ast.keyword) and node.arg == "step"
        ]
    )
    if found is None:
        return None
    value = spot.rng.choice(["1", "0", "2", "step", "self.num_speculative_steps", "True", "0 + 1"])
    return spot.source.swapped([found.value], value)


@kind("stable")
def limit_of_the_class(spot: Spot) -> str | None:
    """`draft_max_seq_len` as `__init__` sets it, in another way or no more."""
    found = [
        one
        for one in spot.method.body
        if isinstance(one, ast.Assign) and "draft_max_seq_len" in spot.source.code(one.targets[0])
    ]
    statement = spot.some(found)
    if statement is None:
        return None
    new = [
        "pass",
        "self.draft_max_seq_len = self.max_num_tokens",
        "limit = self.max_model_len\nself.draft_max_seq_len = limit",
        "if self.device:\n    @",
        "@\n@",
    ]
    return spot.source.around([statement], spot.rng.choice(new))


TERMS = [
    "(num_computed_tokens > 0 or not self.has_mamba_layers)",
    "(num_computed_tokens > 0 or not self.has_mamba_layers)",
    "(not self.has_mamba_layers or num_computed_tokens > 0)",
    "not self.has_mamba_layers",
    "num_computed_tokens > 0",
    "(num_computed_tokens > 0 or self.has_mamba_layers)",
    "(num_computed_tokens >= 0 or not self.has_mamba_layers)",
    "self.use_v2_model_runner",
]


@kind("stable")
def padding_asked(spot: Spot) -> str | None:
    """One term more, in one place or another, or the terms in another order."""
    guard = spot.some(
        [
            node
            for node in ast.walk(spot.method)
            if isinstance(node, ast.If)
            and isinstance(node.test, ast.BoolOp)
            and "num_new_tokens == 1" in spot.source.code(node.test)
        ]
    )
    if guard is None or not isinstance(guard.test, ast.BoolOp):
        return None
    terms = [f"({spot.source.code(one)})" for one in guard.test.values]
    joined = " and ".join(terms)
    term = spot.rng.choice(TERMS)
    how = spot.rng.randint(0, 6)
    if how == 0:
        spot.rng.shuffle(terms)
        test = " and ".join(terms)
    elif how == 1:
        test = f"({joined}) or {term}"
    elif how == 2:
        test = f"{term} and {joined}"
    elif how == 3:
        test = f"(lambda: {joined})()"
    elif how == 4:
        test = f"(ready := {joined})"
    else:
        test = " and ".join([*terms, term])
    return spot.source.swapped([guard.test], test)


@kind("stable")
def padding_otherwise(spot: Spot) -> str | None:
    """What decides of it is set once more, ahead of or behind the place."""
    near = [
        one
        for one in spot.statements
        if spot.source.code(one).startswith(("pad_spec_decode =", "num_new_tokens ="))
    ]
    new = spot.rng.choice(
        [
            "pad_spec_decode = False",
            "pad_spec_decode = pad_spec_decode and not self.has_mamba_layers",
            "num_computed_tokens = num_computed_tokens",
            "num_computed_tokens = 1",
            "num_computed_tokens_ = num_computed_tokens",
            "self.has_mamba_layers = False",
            "self.has_mamba_layers = bool(self.has_mamba_layers)",
        ]
    )
    return _insert(spot, spot.some(near), new)
