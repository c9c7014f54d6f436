"""Counts what an action takes that no clock of this machine can stand for: bytes and programs."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.runtime import interpreter


class _Allocations(TorchDispatchMode):
    """Adds up the storages that operations return and were not given."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {storage.data_ptr() for storage in _storages((args, kwargs))}
        made = {storage.data_ptr(): storage.nbytes() for storage in _storages(result)}
        self.bytes += sum(size for place, size in made.items() if place not in given)
        return result


def _storages(tree: Any) -> Iterator[torch.UntypedStorage]:
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            yield leaf.untyped_storage()


@dataclasses.dataclass
class Taken:
    """What an action took.

    bytes: of all tensors that it made, those that it let go of included.
    programs: that it launched, in all its Triton kernels together.
    """

    bytes: int = 0
    programs: int = 0


def taken(action: Callable[[], Any]) -> tuple[Any, Taken]:
    """What an action returns, and what it took."""
    count = Taken()
    builder = interpreter.interpreter_builder
    set_grid_dim = builder.set_grid_dim

    def counted(*grid: int) -> None:
        count.programs += math.prod(grid)
        set_grid_dim(*grid)

    with patch.object(builder, "set_grid_dim", counted), _Allocations() as allocations:
        result = action()
    count.bytes = allocations.bytes
    return result, count


@contextmanager
def no_kernels() -> Iterator[None]:
    """Triton kernels are asked for and not run: a GPU's host goes on without waiting for them."""

    def launch(*arguments: object, **options: object) -> None:
        pass

    with patch.object(interpreter.InterpretedFunction, "__getitem__", lambda self, grid: launch):
        yield
