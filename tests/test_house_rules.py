"""Rules that no type checker or linter knows of; CONTRIBUTING.md lists them for people."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from scorer.cuda import device
from tests import nvrtc

REPO = Path(__file__).resolve().parent.parent
KERNELS = sorted((REPO / "kernels").glob("*.cu"))
SLOW_TO_IMPORT = ("cupy", "jinja2", "numpy", "tokenizers", "torch", "transformers")


def _python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)


def _slow_imports_of(module: str) -> list[str]:
    done = _python(
        "import importlib, json, sys\n"
        "importlib.import_module(sys.argv[1])\n"
        "print(json.dumps([name for name in sys.argv[2:] if name in sys.modules]))",
        module,
        *SLOW_TO_IMPORT,
    )
    assert done.returncode == 0, done.stderr
    names: list[str] = json.loads(done.stdout)
    return names


@pytest.mark.parametrize("module", ["scorer", "scorer.cli"])
def test_importing_the_command_line_imports_nothing_slow(module: str) -> None:
    assert _slow_imports_of("numpy") == ["numpy"]  # the probe does see what is imported
    assert _slow_imports_of(module) == []


def test_help_takes_less_than_0_4_seconds() -> None:
    """Of processor time, the best of five: other work on the machine moves the wall clock."""
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = _python("from scorer.cli import main; main()", "--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0, done.stderr
        assert "score" in done.stdout
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    assert min(seconds) < 0.4, f"processor times: {seconds}"


def test_the_kernels_folder_holds_cuda_sources_and_a_readme_only() -> None:
    names = {path.name for path in (REPO / "kernels").iterdir()}

    assert names == {"README.md", *(path.name for path in KERNELS)}
    assert KERNELS


def test_transformers_is_not_confused_by_the_kernels_folder() -> None:
    """The checkout is on the path, so ``kernels`` is found; it must not pass for the package."""
    done = _python(
        "from transformers.utils import is_kernels_available\n"
        "from transformers import Qwen3ForCausalLM\n"
        "print(is_kernels_available(), Qwen3ForCausalLM.__name__)"
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "Qwen3ForCausalLM"]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda path: path.name)
def test_a_kernel_includes_no_file_of_ours(kernel: Path) -> None:
    """CuPy's disk cache would not see a change in it."""
    assert '#include "' not in kernel.read_text(encoding="utf-8")


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda path: path.name)
def test_a_kernel_compiles(kernel: Path, dtype: torch.dtype, architecture: str) -> None:
    source = device.full_source(kernel.stem, dtype)

    assert kernel.read_text(encoding="utf-8") in source
    assert nvrtc.compile(source, [*device.COMPILE_OPTIONS, f"-arch={architecture}"]) == ""


def test_nothing_is_left_for_later() -> None:
    words = ["TO" + "DO", "FIX" + "ME", "XX" + "X"]
    folders = [".ci", "docs", "examples", "kernels", "scorer", "tests"]
    files = [path for path in REPO.iterdir() if path.is_file()]
    files += [path for folder in folders for path in (REPO / folder).rglob("*") if path.is_file()]
    kinds = {".cu", ".md", ".py", ".toml", ".txt", ""}
    texts = [path for path in files if path.suffix in kinds and "__pycache__" not in path.parts]

    found = [
        f"{path.relative_to(REPO)}:{number}: {line.strip()}"
        for path in texts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if any(word in line for word in words)
    ]

    assert found == []
    assert len(texts) > 20


def test_every_release_says_whether_scores_changed() -> None:
    text = (REPO / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = text.split("\n## ")[1:]

    assert releases
    assert releases[0].startswith("[Unreleased]")
    assert [part.splitlines()[0] for part in releases if "\n### Scores changed\n" not in part] == []
