"""What is shipped: the sdist, and the wheel that is built from it."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import scorer

REPO = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))
NOT_SHIPPED = {"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"}

EXAMPLES = ("chat.jsonl", "continuations.jsonl", "sentiment.jsonl")


@dataclass(frozen=True, slots=True)
class Built:
    """File names in both archives (without the sdist's leading folder), and the wheel unpacked."""

    sdist: frozenset[str]
    wheel: frozenset[str]
    unpacked: Path

    def dist_info(self, name: str) -> bytes:
        [path] = self.unpacked.glob(f"*.dist-info/{name}")
        return path.read_bytes()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build the sdist from the checkout, then the wheel from the sdist, as an installer would."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(REPO)]
    done = subprocess.run(command, cwd=out, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [sdist] = out.glob("*.tar.gz")
    [wheel] = out.glob("*.whl")
    with tarfile.open(sdist) as archive:
        files = [Path(member.name) for member in archive.getmembers() if member.isfile()]
    unpacked = out / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
        names = frozenset(archive.namelist())
    return Built(frozenset(Path(*file.parts[1:]).as_posix() for file in files), names, unpacked)


def _below(*folders: str) -> set[str]:
    return {
        path.relative_to(REPO).as_posix()
        for folder in folders
        for path in (REPO / folder).rglob("*")
        if path.is_file() and not NOT_SHIPPED & set(path.parts)
    }


def test_the_sdist_holds_all_that_building_and_testing_need(built: Built) -> None:
    single = {
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "Makefile",
        "PKG-INFO",
        "README.md",
        "constraints.txt",
        "pyproject.toml",
    }

    assert single <= built.sdist
    assert built.sdist >= _below(".ci", "docs", "examples", "kernels", "scorer", "tests")


def test_the_sdist_holds_nothing_that_a_run_left_behind(built: Built) -> None:
    assert not {name for name in built.sdist if NOT_SHIPPED & set(Path(name).parts)}
    assert not {name for name in built.sdist if name.startswith((".venv/", "out/", "dist/"))}


def test_the_wheel_holds_one_package_and_nothing_else(built: Built) -> None:
    version = scorer.__version__

    assert {name.split("/")[0] for name in built.wheel} == {"scorer", f"scorer-{version}.dist-info"}
    assert {name for name in built.wheel if name.startswith("scorer/")} == {
        *_below("scorer"),
        *(f"scorer/{name}" for name in _below("kernels")),
        *(f"scorer/examples/{name}" for name in EXAMPLES),
    }
    assert "scorer/py.typed" in built.wheel


def test_the_wheel_carries_the_kernels_inside_the_package(built: Built) -> None:
    shipped = {name for name in built.wheel if name.startswith("scorer/kernels/")}

    assert "scorer/kernels/README.md" in shipped
    assert {name for name in shipped if name.endswith(".cu")} == {
        f"scorer/{name}" for name in _below("kernels") if name.endswith(".cu")
    }
    assert any(name.endswith(".cu") for name in shipped)


def test_the_metadata_says_what_pyproject_says(built: Built) -> None:
    metadata = message_from_bytes(built.dist_info("METADATA"))
    required = {Requirement(text) for text in metadata.get_all("Requires-Dist", [])}

    assert metadata["Name"] == "scorer"
    assert metadata["Version"] == scorer.__version__
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert set(metadata.get_all("Provides-Extra", [])) == set(
        PYPROJECT["project"]["optional-dependencies"]
    )
    assert {requirement for requirement in required if requirement.marker is None} == {
        Requirement(text) for text in PYPROJECT["project"]["dependencies"]
    }
    assert b"Apache License" in built.dist_info("licenses/LICENSE")


def _run_from_the_wheel(built: Built, folder: Path, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(built.unpacked)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_wheel_finds_its_kernels_without_the_checkout(built: Built, tmp_path: Path) -> None:
    code = (
        "import scorer.cuda.device\n"
        "print(scorer.cuda.device.__file__)\n"
        "print(scorer.cuda.device.source('reduction'), end='')"
    )

    where, _, source = _run_from_the_wheel(built, tmp_path, code).partition("\n")

    assert Path(where) == built.unpacked / "scorer" / "cuda" / "device.py"
    assert source == (REPO / "kernels" / "reduction.cu").read_text(encoding="utf-8")


def test_the_wheel_finds_its_examples_without_the_checkout(built: Built, tmp_path: Path) -> None:
    code = "from scorer.check.job import bundled_examples; print(*bundled_examples(), sep='\\n')"
    folder = built.unpacked / "scorer" / "examples"
    found = _run_from_the_wheel(built, tmp_path, code).splitlines()
    assert found == [str(folder / name) for name in EXAMPLES]


def test_the_wheel_installs_the_command(built: Built, tmp_path: Path) -> None:
    code = "import sys\nfrom scorer.cli import main\nsys.argv = ['scorer', '--help']\nmain()"

    assert b"[console_scripts]\nscorer = scorer.cli:main\n" in built.dist_info("entry_points.txt")
    assert "score" in _run_from_the_wheel(built, tmp_path, code)


def test_every_requirement_has_a_tested_version_in_the_constraints() -> None:
    project = PYPROJECT["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    pinned = {}
    for line in (REPO / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            name, _, version = line.partition("==")
            pinned[canonicalize_name(name)] = version

    for requirement in [Requirement(text) for group in groups for text in group]:
        version = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} against {version}"
    assert not [version for version in pinned.values() if "+" in version]
