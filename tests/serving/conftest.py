"""What the serving tests share: models with their reference, and vLLMs with the series in them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from mrv2_fixes import engine
from mrv2_fixes.engine.uv import uv

from . import traffic

ROOT = Path(__file__).parents[2]
RELEASE = "0.24.0"
LIMIT = 300.0
"""Seconds for a run that answers by itself."""


@dataclass(frozen=True)
class Model:
    """A model that is served: its folder, what it is asked, and transformers' tokens for that."""

    folder: Path
    requests: list[traffic.Request]
    expected: list[list[int]]


@pytest.fixture(scope="session")
def published() -> engine.Environment:
    """The release as it is on the package index."""
    return engine.environment(RELEASE, progress=print)


@pytest.fixture(scope="session")
def models(
    published: engine.Environment, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Model]:
    """The tiny models, by kind."""
    made = tmp_path_factory.mktemp("models")
    run(published, "reference", made)
    return {
        path.stem: Model(path.with_suffix(""), traffic.mix(), json.loads(path.read_text()))
        for path in made.glob("*.json")
    }


@pytest.fixture(scope="session")
def plugin(
    published: engine.Environment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[engine.Environment]:
    """The release with this package installed beside it, and nothing else done."""
    built = tmp_path_factory.mktemp("package")
    uv("build", "--wheel", "--quiet", "--out-dir", str(built), str(ROOT), about="the package")
    with twin(published) as environment:
        install(environment, *built.glob("*.whl"))
        yield environment


@pytest.fixture(scope="session")
def ray(plugin: engine.Environment) -> Iterator[engine.Environment]:
    """The same with Ray."""
    with twin(plugin) as environment:
        install(environment, "ray")
        yield environment


@pytest.fixture(scope="session")
def wheel(
    published: engine.Environment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[engine.Environment]:
    """The release replaced by its patched wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    requirement = f"{engine.DISTRIBUTION}=={RELEASE}"
    download = ("-m", "pip", "download", "--quiet", "--no-deps", requirement)
    subprocess.run([sys.executable, *download], cwd=folder, check=True)
    (official,) = folder.glob("*.whl")
    mrv2("build", official, "--output", folder / "dist")
    with twin(published) as environment:
        install(environment, "--no-deps", *folder.glob("dist/*/*.whl"))
        yield environment


@pytest.fixture(scope="session")
def apply(published: engine.Environment) -> Iterator[engine.Environment]:
    """The release changed where it is installed."""
    with twin(published) as environment:
        mrv2("apply", environment.site_packages)
        yield environment


def mrv2(*arguments: str | Path) -> None:
    """Run the command as a user does."""
    subprocess.run([Path(sys.executable).with_name("mrv2"), *arguments], check=True)


@contextmanager
def twin(environment: engine.Environment) -> Iterator[engine.Environment]:
    """A second environment with the same files, to be changed by those who replace files whole.

    It takes a second and no room: the files are hard links.
    """
    beside = environment.folder.parent
    with tempfile.TemporaryDirectory(prefix=f"{RELEASE}-serving-", dir=beside) as temporary:
        folder = Path(temporary) / "environment"
        subprocess.run(["cp", "--archive", "--link", environment.folder, folder], check=True)
        yield msgspec.structs.replace(environment, folder=folder)


def install(environment: engine.Environment, *what: str | Path) -> None:
    """Install with uv, as a user does."""
    options = ("--quiet", "--python", str(environment.python))
    uv("pip", "install", *options, *map(str, what), about=f"installing {what[-1]}")


def run(
    environment: engine.Environment, module: str, *arguments: str | Path, **variables: str
) -> None:
    """Run a module of `tests.serving.inside` in the environment, on the engine."""
    command = [str(environment.python), "-m", f"tests.serving.inside.{module}"]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        status = engine.run_command(
            [*command, *map(str, arguments)],
            ROOT,
            engine.variables(environment) | {"TMPDIR": folder} | variables,
            output,
            LIMIT,
        )
        assert status == 0, f"{module} ended with {status}:\n{output.read_text(errors='replace')}"
