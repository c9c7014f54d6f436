"""The version of a patched wheel, and where a wheel says its version.

The base's own, with `mrv2.N` in its local part: 0.24.0+mrv2.1, 0.24.0+cu129.mrv2.1.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from packaging.version import Version

VERSION_FILE = "vllm/_version.py"
NAMES = {"__version__", "version", "__version_tuple__", "version_tuple"}


def with_local(version: Version, segments: str) -> Version:
    """`version` with more in its local part."""
    return Version(f"{version}{'.' if version.local else '+'}{segments}")


def in_metadata(content: bytes, version: Version) -> bytes:
    """METADATA with another version; it is known to have one."""
    return re.sub(
        rb"^(Version:[ \t]*)[^\r\n]*",
        rb"\g<1>%b" % str(version).encode(),
        content,
        count=1,
        flags=re.IGNORECASE | re.MULTILINE,
    )


def in_version_file(content: bytes, old: Version, new: Version) -> bytes:
    """vLLM's `_version.py` with another version, which setuptools-scm wrote as two literals.

    They may lack the local part. Raises ValueError when they are not there, or of another version.
    """
    try:
        nodes = [node for node in ast.parse(content).body if isinstance(node, ast.Assign)]
    except SyntaxError as error:
        raise ValueError(f"not Python: {error}") from error
    starts = [0]
    for line in content.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = set()
    for node in reversed(nodes):
        names = {target.id for target in node.targets if isinstance(target, ast.Name)}
        if not names & NAMES:
            continue
        found |= names
        try:
            literal = _literal(ast.literal_eval(node.value), old, new)
        except (ValueError, TypeError):
            raise ValueError(f"sought version {old}, found {ast.unparse(node)!r}") from None
        first = starts[node.value.lineno - 1] + node.value.col_offset
        last = starts[(node.value.end_lineno or 0) - 1] + (node.value.end_col_offset or 0)
        content = content[:first] + literal.encode() + content[last:]
    missing = {"__version__", "__version_tuple__"} - found
    if missing:
        raise ValueError(f"sought an assignment to {min(missing)}, found none")
    return content


def _literal(value: object, old: Version, new: Version) -> str:
    """What stands for `new` where `value` stands for `old`. Raises ValueError when it does not."""
    for version in (old, Version(old.public)):
        if value == str(version):
            return repr(str(new))
        if value == _fields(version):
            return repr(_fields(new))
    raise ValueError(value)


def _fields(version: Version) -> tuple[int | str, ...]:
    """A version as setuptools-scm takes it apart."""
    pre = "".join(map(str, version.pre or ()))
    post = f"post{version.post}" if version.post is not None else ""
    dev = f"dev{version.dev}" if version.dev is not None else ""
    return (*version.release, *filter(None, (pre, post, dev, version.local)))


def renamed(paths: Iterable[str], old: str, new: Version) -> dict[str, str]:
    """Path to what it is called under another version; `old` is what the folders' names begin with.

    An installer finds a wheel's folders by its name and version.
    """
    name = old.partition("-")[0]
    prefixes = {f"{old}.{kind}": f"{name}-{new}.{kind}" for kind in ("dist-info", "data")}
    found = {}
    for path in paths:
        folder, slash, below = path.partition("/")
        found[path] = prefixes.get(folder, folder) + slash + below
    return found


def file_name(name: str, version: Version) -> str:
    """A wheel's file name under another version: its build number and tags stay."""
    distribution, _, *rest = name.split("-")
    return "-".join([distribution, str(version), *rest])
