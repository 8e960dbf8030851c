"""The machine and its software, in full: wider than the numerics key, and no part of it.

What may change a bit is in the key, in the fields of ``scorer.manifest``. Here stands what a person
looks for besides when two machines disagree.
"""

from __future__ import annotations

import os
import platform
import sys
from typing import TYPE_CHECKING

from scorer import __version__
from scorer.manifest import cuda_fields, environment_fields, host_fields, library_versions
from scorer.processor import cpu_flags

if TYPE_CHECKING:
    from scorer.manifest import Json

_LIBRARIES = (
    *("torch", "transformers", "tokenizers", "safetensors", "huggingface-hub", "numpy", "msgspec"),
    *("jinja2", "triton", "cupy-cuda12x", "cupy-cuda13x"),
    *("nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
    *("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"),
)


def describe_environment() -> dict[str, Json]:
    """Return versions, settings, processor and accelerator as they are now."""
    import torch

    from scorer.cuda.device import sources_sha256

    return {
        "scorer": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "libraries": library_versions(_LIBRARIES),
        "kernels_sha256": {**sources_sha256()},
        "host": {
            **host_fields(),
            "cpu_flags": list(cpu_flags()),
            "cpus": os.cpu_count(),
            "interop_threads": torch.get_num_interop_threads(),
        },
        "cuda": {**cuda_fields(), "nvrtc": _nvrtc()} if torch.cuda.is_available() else None,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "variables": environment_fields(),
    }


def _nvrtc() -> Json:
    """Return the version of the compiler that CuPy found; None without CuPy."""
    try:
        from cupy.cuda import nvrtc
    except ImportError:
        return None
    return ".".join(map(str, nvrtc.getVersion()))
