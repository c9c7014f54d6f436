"""The one ``from … import …`` of a name that an edit makes use of, among those of a module."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
import libcst.matchers as m

from mrv2_fixes.edit.source import code_of


def imports_at(module: cst.Module, name: str, source: str) -> int | None:
    """The number of the statement that imports `name`, as it is called there, from `source`."""
    for index, imported in _from_imports(module):
        if _module(imported) == source and not isinstance(imported.names, cst.ImportStar):
            for alias in imported.names:
                if alias.asname is None and alias.evaluated_name == name:
                    return index
    return None


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
        (index, _module(imported))
        for index, imported in _from_imports(module)
        if index < first and _module(imported).partition(".")[0] == package
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


def _from_imports(module: cst.Module) -> Iterator[tuple[int, cst.ImportFrom]]:
    """Each ``from … import …`` that is a line of its own at the top level, with its number."""
    for index, line in enumerate(module.body):
        if m.matches(line, m.SimpleStatementLine(body=[m.ImportFrom(relative=[])])):
            statement = cst.ensure_type(line, cst.SimpleStatementLine)
            yield index, cst.ensure_type(statement.body[0], cst.ImportFrom)


def _module(imported: cst.ImportFrom) -> str:
    return code_of(imported.module) if imported.module else ""
