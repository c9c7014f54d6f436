"""What a module in memory is made of, told by the code of its functions."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType


def made_of(module: ModuleType, text: bytes) -> bool:
    """Whether the functions and methods of a module are those of `text`; False when it has none.

    Functions that a decorator hides, and names that are gone again, tell nothing.
    """
    codes = defaultdict[tuple[str, ...], list[CodeType]](list)
    for name, code in _codes(compile(text, str(module.__name__), "exec", dont_inherit=True)):
        codes[name].append(code)
    found = [
        function.__code__ in codes[name]
        for name in codes
        if (function := _function(module, name)) is not None
    ]
    return bool(found) and all(found)


def _codes(
    code: CodeType, within: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], CodeType]]:
    """The code of each function at the top level and in classes, by its dotted name in parts."""
    for constant in code.co_consts:
        if not isinstance(constant, CodeType) or constant.co_name.startswith("<"):
            continue
        name = (*within, constant.co_name)
        if constant.co_flags & inspect.CO_OPTIMIZED:
            yield name, constant
        else:
            yield from _codes(constant, name)


def _function(module: ModuleType, name: tuple[str, ...]) -> FunctionType | None:
    found: object = module
    for part in name:
        found = getattr(found, "__dict__", {}).get(part)
    if isinstance(found, staticmethod | classmethod):
        found = found.__func__
    if callable(found):
        found = inspect.unwrap(found)
    return found if isinstance(found, FunctionType) else None
