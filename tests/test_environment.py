from __future__ import annotations

import json
import platform

import pytest
import torch

from scorer import __version__
from scorer.cuda import device
from scorer.environment import describe_environment
from scorer.processor import cpu_flags


def test_what_the_environment_names() -> None:
    told = describe_environment()

    assert told["scorer"] == __version__
    assert told["python"] == platform.python_version()
    libraries = told["libraries"]
    assert isinstance(libraries, dict)
    assert libraries["torch"] == torch.__version__
    assert {"transformers", "triton", "cupy-cuda13x", "nvidia-cublas"} <= set(libraries)
    assert told["kernels_sha256"] == {"reduction": device.source_sha256("reduction")}
    host = told["host"]
    assert isinstance(host, dict)
    assert host["threads"] == torch.get_num_threads()
    assert host["cpu_flags"] == list(cpu_flags())
    assert (told["cuda"] is None) == (not torch.cuda.is_available())
    json.dumps(told, allow_nan=False)


def test_variables_that_choose_kernels_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setenv("SCORER_SOMETHING", "1")
    variables = describe_environment()["variables"]
    assert isinstance(variables, dict)
    assert variables["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert "SCORER_SOMETHING" not in variables


@pytest.mark.gpu
def test_what_the_environment_names_of_a_gpu() -> None:
    cuda = describe_environment()["cuda"]
    assert isinstance(cuda, dict)
    assert cuda["gpu"] == torch.cuda.get_device_name(0)
    assert cuda["cuda"] == torch.version.cuda
    assert isinstance(cuda["nvrtc"], str)
    wanted = {"driver", "cublas", "float32_precision", "compute_capability", "multiprocessors"}
    assert wanted <= set(cuda)
    assert isinstance(cuda["driver"], str)
    major = int(str(torch.version.cuda).partition(".")[0])
    loaded = cuda["cublas_loaded"]
    assert isinstance(loaded, int)
    assert loaded // 10_000 == major
