"""What a module imports by ``from … import …``, and the name that an edit adds to it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from mrv2_fixes.edit.source import code_of


def from_imports(module: cst.Module) -> Iterator[tuple[int, cst.ImportFrom]]:
    """Each ``from … import …`` at the top level, with the number of its line of statements."""
    for index, line in enumerate(module.body):
        if isinstance(line, cst.SimpleStatementLine):
            yield from ((index, node) for node in line.body if isinstance(node, cst.ImportFrom))


def module_of(imported: cst.ImportFrom) -> str:
    """The module that it names in full, or empty."""
    return code_of(imported.module) if imported.module and not imported.relative else ""


def imports_at(module: cst.Module, name: str, source: str) -> int | None:
    """The number of the line that imports `name`, as it is called there, from `source`."""
    for index, imported in from_imports(module):
        if module_of(imported) == source and not isinstance(imported.names, cst.ImportStar):
            for alias in imported.names:
                if alias.asname is None and alias.evaluated_name == name:
                    return index
    return None


def imports_module(module: cst.Module, name: str) -> bool:
    """Whether an ``import …`` at the top level gives it a module by that name."""
    return any(
        (alias.evaluated_alias or alias.evaluated_name) == name
        for line in module.body
        if isinstance(line, cst.SimpleStatementLine)
        for node in line.body
        if isinstance(node, cst.Import)
        for alias in node.names
    )


def with_import(module: cst.Module, name: str, source: str) -> cst.Module | None:
    """`module` with ``from source import name``, where isort has it; None where it has no kin.

    The kin are what it imports so of the same package, ahead of its first definition.
    """
    package = source.partition(".")[0]
    first = next(
        (i for i, n in enumerate(module.body) if isinstance(n, cst.FunctionDef | cst.ClassDef)),
        len(module.body),
    )
    kin = [
        (index, module_of(imported))
        for index, imported in from_imports(module)
        if index < first and module_of(imported).partition(".")[0] == package
    ]
    if not kin:
        return None
    index = next((index for index, other in kin if other > source), kin[-1][0] + 1)
    new = cst.parse_statement(
        f"from {source} import {name}{module.default_newline}", config=module.config_for_parsing
    )
    new = cst.ensure_type(new, cst.SimpleStatementLine)
    body = [*module.body]
    if index == kin[0][0]:
        # The blank lines are those of the block, which the new one now begins.
        neighbour = cst.ensure_type(body[index], cst.SimpleStatementLine)
        lines = neighbour.leading_lines
        blank = next((i for i, line in enumerate(lines) if line.comment), len(lines))
        new = new.with_changes(leading_lines=lines[:blank])
        body[index] = neighbour.with_changes(leading_lines=lines[blank:])
    return module.with_changes(body=[*body[:index], new, *body[index:]])
