"""A Python source that is changed as text, at places found in its syntax tree."""

from __future__ import annotations

import ast
import random
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

CLASSES = [
    "MambaHybridModelState",
    "DefaultModelState",
    "EagleSpeculator",
    "AutoRegressiveSpeculator",
    "TargetDependentARSpeculator",
    "DraftModelSpeculator",
    "EncoderOnlyModelState",
    "DFlashSpeculator",
    "PlainDraftModelSpeculator",
    "StandaloneARSpeculator",
    "GPUModelRunner",
    "Scheduler",
    "GDNAttentionMetadataBuilder",
]
FUNCTIONS = ["build_attn_metadata", "sort_batch_req_ids"]
METHODS = [
    "prepare_attn",
    "propose",
    "__init__",
    "_build_draft_attn_metadata",
    "_build_attn_metadata",
    "multi_step_decode",
    "_multi_step_decode",
    "_build_encoder_attn_metadata",
    "add_request",
    "_prefill",
    "prepare_inputs",
    "schedule",
    "build",
]
CALLS = [
    *("build_attn_metadata", "MambaHybridAttnMetadata", "CommonAttentionMetadata"),
    *("self._build_attn_metadata", "sort_batch_req_ids", "async_copy_to_gpu"),
    *("split_decodes_and_prefills", "super().add_request"),
]
# What the edits and the code about their places speak of.
RELATED = [
    *CALLS,
    "max_seq_len",
    "max_query_len",
    "num_accepted_tokens",
    "num_decode_draft_tokens_cpu",
    "seq_lens_cpu_upper_bound",
    "num_reqs",
    "for_capture",
    "max_model_len",
    "draft_max_seq_len",
    "num_speculative_steps",
    "input_batch",
    "common_attn_metadata",
    "encoder_attn_groups",
    "num_accepted_tokens_gpu",
    "idx_mapping_np",
    "req_ids",
    "pad_spec_decode",
    "num_new_tokens == 1",
    "has_mamba_layers",
]

Edit = tuple[int, int, str]
T = TypeVar("T")


class Source:
    """Text and syntax tree. Raises SyntaxError or ValueError where there is no tree."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self.lines = text.split("\n")
        self._starts = [0]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line) + 1)

    def _offset(self, line: int, column: int) -> int:
        # The columns of a tree count bytes.
        return self._starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where a node begins and ends in the text."""
        begin = self._offset(getattr(node, "lineno", 1), getattr(node, "col_offset", 0))
        return begin, self._offset(
            getattr(node, "end_lineno", 1), getattr(node, "end_col_offset", 0)
        )

    def code(self, node: ast.AST) -> str:
        begin, end = self.span(node)
        return self.text[begin:end]

    def replaced(self, *edits: Edit) -> str:
        """The text with every span replaced; they must not overlap."""
        text = self.text
        for begin, end, new in sorted(edits, reverse=True):
            text = text[:begin] + new + text[end:]
        return text

    def swapped(self, nodes: Sequence[ast.AST], new: str) -> str:
        """The text with each of the nodes replaced."""
        return self.replaced(*((*self.span(node), new) for node in nodes))

    def lines_of(self, statement: ast.stmt) -> tuple[int, int]:
        """The first line of a statement, decorators included, and the one behind it, from 0."""
        decorators = getattr(statement, "decorator_list", [])
        first = min([statement.lineno, *(one.lineno for one in decorators)])
        return first - 1, statement.end_lineno or first

    def indent(self, statement: ast.stmt) -> str:
        line = self.lines[statement.lineno - 1]
        return line[: len(line) - len(line.lstrip())]

    def around(self, statements: Sequence[ast.stmt], template: str) -> str:
        """The text with `template` in the place of neighbouring statements; ``@`` is them."""
        first, last = self.lines_of(statements[0])[0], self.lines_of(statements[-1])[1]
        body = textwrap.dedent("\n".join(self.lines[first:last]))
        new = []
        for line in template.split("\n"):
            inner = line[: len(line) - len(line.lstrip())]
            new.append(textwrap.indent(body, inner) if line.strip() == "@" else line)
        code = textwrap.indent("\n".join(new), self.indent(statements[0]))
        return "\n".join([*self.lines[:first], code, *self.lines[last:]])

    def classes(self) -> Iterator[ast.ClassDef]:
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef) and node.name in CLASSES:
                yield node

    def functions(self) -> Iterator[ast.FunctionDef]:
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef) and node.name in FUNCTIONS:
                yield node


@dataclass
class Spot:
    """A method that an edit looks at, in a source that is to be changed.

    class_: the class that it is in; None for a function at the top level.
    """

    source: Source
    rng: random.Random
    path: str
    class_: ast.ClassDef | None
    method: ast.FunctionDef
    statements: list[ast.stmt] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.statements = [
            node
            for outer in self.method.body
            for node in ast.walk(outer)
            if isinstance(node, ast.stmt) and self._alone(node)
        ]

    @property
    def owner(self) -> ast.ClassDef:
        """The class. Raises LookupError where there is none."""
        if self.class_ is None:
            raise LookupError(f"{self.method.name} is in no class")
        return self.class_

    @property
    def indent(self) -> str:
        """Of the method itself."""
        return self.source.indent(self.method)

    def _alone(self, node: ast.stmt) -> bool:
        line = self.source.lines[node.lineno - 1]
        return not line.encode()[: node.col_offset].strip() and ";" not in line

    def statement(self, *, top: bool = False) -> ast.stmt | None:
        """Some statement, mostly one that speaks of what the edits are about."""
        found = [one for one in self.statements if not top or one in self.method.body]
        related = [one for one in found if any(word in self.source.code(one) for word in RELATED)]
        return self.some(related) if related and self.rng.random() < 0.8 else self.some(found)

    def call(self) -> ast.Call | None:
        """A call that an edit is about."""
        return self.some(
            [
                node
                for node in ast.walk(self.method)
                if isinstance(node, ast.Call) and self.source.code(node.func) in CALLS
            ]
        )

    def holder(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that a node is in."""
        return [one for one in self.statements if node in ast.walk(one)][-1]

    def names(self, *contexts: type[ast.expr_context]) -> list[ast.Name]:
        """The names in the method."""
        return [
            node
            for node in ast.walk(self.method)
            if isinstance(node, ast.Name) and isinstance(node.ctx, contexts or ast.expr_context)
        ]

    def name(self) -> str:
        """A name that the method uses, mostly one that the edits are about."""
        found = sorted({node.id for node in self.names()})
        near = [one for one in found if one in RELATED]
        chosen = self.some(near) if near and self.rng.random() < 0.7 else self.some(found)
        return chosen or "self"

    def some(self, found: Sequence[T]) -> T | None:
        """One of them, or None where there is none."""
        return self.rng.choice(found) if found else None
