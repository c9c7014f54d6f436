"""A release's package with some files replaced: a folder to put first on PYTHONPATH."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from mrv2_fixes.engine.environments import Environment
from mrv2_fixes.engine.errors import EngineError


def patched_tree(environment: Environment, files: Mapping[str, str | bytes], cache: Path) -> Path:
    """A folder that holds `vllm/` as the environment has it, with `files` replaced or added.

    files: new contents by path, as "vllm/v1/worker/gpu/input_batch.py". With none it is the
    environment's own folder: the release as published.
    Raises EngineError when a path does not lie in vllm/ or there is no room.
    """
    if not files:
        return environment.site_packages
    contents = {
        _checked(path): text.encode() if isinstance(text, str) else text
        for path, text in sorted(files.items())
    }
    trees = cache / "trees"
    tree = trees / f"{environment.release}-{_key(environment, contents)}"
    if tree.is_dir():
        return tree
    try:
        trees.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=trees) as temporary:
            making = Path(temporary) / "tree"
            _write(making, environment, contents)
            _put(making, tree)
    except OSError as error:
        raise EngineError(f"{tree}: {error.strerror}: no patched tree was made") from error
    return tree


def _checked(path: str) -> PurePosixPath:
    parts = PurePosixPath(path)
    if parts.parts[:1] != ("vllm",) or len(parts.parts) < 2 or ".." in parts.parts:
        raise EngineError(f"{path}: not the path of a file in vllm/")
    return parts


def _key(environment: Environment, contents: Mapping[PurePosixPath, bytes]) -> str:
    digest = hashlib.sha256(str(environment.folder).encode())
    for path, content in contents.items():
        digest.update(f"\0{path}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def _write(tree: Path, environment: Environment, contents: Mapping[PurePosixPath, bytes]) -> None:
    shutil.copytree(environment.vllm, tree / "vllm", copy_function=_link)
    for path, content in contents.items():
        file = tree / path
        file.parent.mkdir(parents=True, exist_ok=True)
        # the old file is one with the environment's and with uv's cache: never written through
        file.unlink(missing_ok=True)
        file.write_bytes(content)
        for compiled in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
            compiled.unlink()


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        # the cache may lie on another file system, or on one without hard links
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        shutil.copy2(source, target)


def _put(made: Path, tree: Path) -> None:
    try:
        made.rename(tree)
    except OSError:
        # another process was first; what it put there has the same contents
        if not tree.is_dir():
            raise
