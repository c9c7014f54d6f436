"""The files of a vLLM, some of them as they were or will be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


class Overlaid(Mapping[str, bytes]):
    """`files` but for `others`: path to what is there instead, None for nothing."""

    def __init__(self, files: Mapping[str, bytes], others: Mapping[str, bytes | None]) -> None:
        self._files = files
        self._others = others

    def __getitem__(self, path: str) -> bytes:
        content = self._others[path] if path in self._others else self._files[path]
        if content is None:
            raise KeyError(path)
        return content

    def __contains__(self, path: object) -> bool:
        if isinstance(path, str) and path in self._others:
            return self._others[path] is not None
        return path in self._files

    def __iter__(self) -> Iterator[str]:
        return (path for path in {**dict.fromkeys(self._files), **self._others} if path in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)
