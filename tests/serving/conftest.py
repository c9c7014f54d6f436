"""What the serving tests share: models with their reference, and vLLMs with the series in them."""

from __future__ import annotations

import json
import subprocess
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
MANY = 300.0
"""Seconds that a step of the preparation may take."""


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
    run(published, "-m", "tests.serving.inside.reference", made, cwd=ROOT)
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
    (wheel,) = built.glob("*.whl")
    with twin(published) as environment:
        install(environment, str(wheel))
        yield environment


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


def install(environment: engine.Environment, *what: str) -> None:
    """Install with uv, as a user does."""
    options = ("--quiet", "--python", str(environment.python))
    uv("pip", "install", *options, *what, about=f"installing {' '.join(what)}")


def run(
    environment: engine.Environment, *arguments: str | Path, cwd: Path, **variables: str
) -> str:
    """What the environment's Python prints on the engine; its errors are shown as they come."""
    done = subprocess.run(
        [environment.python, *arguments],
        cwd=cwd,
        env=engine.variables(environment) | variables,
        stdout=subprocess.PIPE,
        text=True,
        timeout=MANY,
        check=True,
    )
    return done.stdout
