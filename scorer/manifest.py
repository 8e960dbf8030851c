"""What produced a file of scores: the numerics key, content hashes and the manifest beside OUT.

The numerics key is a hash over everything that may change a bit of a score. Two runs with the same
key give the same bits for the same read; two runs with different keys may not, and the fields say
which of them differ.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scorer.errors import DeviceError
from scorer.job.output import replace_file
from scorer.processor import cpu_model

if TYPE_CHECKING:
    import torch

    from scorer.model import Qwen3
    from scorer.shapes import BatchShape

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

_CHUNK = 64 * 2**20

_COMPUTES = (
    "answers.py",
    "asks.py",
    "compare/blocks.py",
    "compare/orderings.py",
    "compare/rows.py",
    "cuda/attention.py",
    "cuda/device.py",
    "cuda/forward.py",
    "cuda/fused.py",
    "cuda/graphs.py",
    "cuda/head.py",
    "cuda/reduction_plan.py",
    "cuda/tiles.py",
    "entries.py",
    "model.py",
    "numeric.py",
    "packing.py",
    "pieces.py",
    "probes.py",  # compute nothing, but a remembered self-test is one of these very probes
    "reader.py",
    "reduction.py",
    "selftest.py",
    "shapes.py",
    "tables.py",
)
"""Our own modules between token ids and scores, and between scores and their averages."""

_ENVIRONMENT = (
    # variables that choose kernels, orders of summation or numbers of threads underneath torch
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "TORCH_CUBLASLT_WORKSPACE_SIZE",
    "TORCH_CUBLASLT_UNIFIED_WORKSPACE",
    "CUBLAS_EMULATE_SINGLE_PRECISION",
    "CUBLAS_EMULATION_STRATEGY",
    "CUDA_FORCE_PTX_JIT",
    "CUDA_FORCE_JIT",
    # those that choose instructions for Triton's kernels
    "ALLOW_LHS_TMEM_LAYOUT_CONVERSION",
    "DISABLE_FAST_REDUCTION",
    "DISABLE_LLVM_OPT",
    "DISABLE_MMA_V3",
    "DISABLE_MMA_V5",
    "DISABLE_PTXAS_OPT",
    "LLVM_PASS_PLUGIN_PATH",
    "PTXAS_OPTIONS",
    "TRITON_DEFAULT_FP_FUSION",
    "TRITON_F32_DEFAULT",
    "TRITON_INSTRUMENTATION_MODE",
    "TRITON_INTERPRET",
    "TRITON_KERNEL_OVERRIDE",
    "TRITON_LIBDEVICE_PATH",
    "TRITON_MOCK_PTX_VERSION",
    "TRITON_OVERRIDE_ARCH",
    "TRITON_OVERRIDE_DIR",
    "TRITON_PREFER_TMEM_16x256_LAYOUT",
    "TRITON_PTXAS_BLACKWELL_PATH",
    "TRITON_PTXAS_PATH",
    "TRITON_SWAP_MIR",
    # those of the CPU's libraries
    "OMP_NUM_THREADS",
    "OMP_DYNAMIC",
    "OMP_THREAD_LIMIT",
    "MKL_NUM_THREADS",
    "MKL_DOMAIN_NUM_THREADS",
    "MKL_NUM_STRIPES",
    "MKL_DYNAMIC",
    "MKL_DISABLE_FAST_MM",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_DEBUG_CPU_TYPE",
    "ONEDNN_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "DNNL_DEFAULT_FPMATH_MODE",
    "ATEN_CPU_CAPABILITY",
    "OPENBLAS_CORETYPE",
)


_PRODUCTS = (
    # settings of matrix products on CUDA; a version of torch may lack some
    "allow_fp16_accumulation",
    "allow_fp16_reduced_precision_reduction",
    "allow_fp16_reduced_precision_reduction_split_k",
    "allow_bf16_reduced_precision_reduction",
    "allow_bf16_reduced_precision_reduction_split_k",
)
_WORKSPACES = ("cublas_workspace_size", "cublaslt_workspace_size")
_ATTENTIONS = ("flash_sdp_enabled", "mem_efficient_sdp_enabled", "math_sdp_enabled")


def canonical_json(value: Json) -> bytes:
    """Return the one UTF-8 spelling of a JSON value that hashes are taken over."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def spelled(name: str) -> str:
    """Return a name as JSON can hold it: bytes that are no UTF-8 are spelled out."""
    return name.encode("utf-8", "backslashreplace").decode()


def sha256_of(value: Json) -> str:
    """Return the hex SHA-256 of a JSON value's canonical spelling."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def hash_files(files: Iterable[Path]) -> str:
    """Return a hex content hash of files: names, sizes and bytes.

    A tree hash, so that it can run on several cores: SHA-256 of each 64 MiB piece, then SHA-256
    over the list of names, sizes and pieces in order.
    """

    def digest(piece: tuple[Path, int]) -> str:
        with piece[0].open("rb") as handle:
            handle.seek(piece[1])
            return hashlib.sha256(handle.read(_CHUNK)).hexdigest()

    listing: list[Json] = []
    with ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as pool:
        for file in sorted(files, key=lambda file: file.name):
            size = file.stat().st_size
            pieces = [(file, start) for start in range(0, size, _CHUNK)]
            digests: list[Json] = list(pool.map(digest, pieces))
            listing.append([file.name, size, digests])
    return sha256_of(listing)


def library_versions(names: Iterable[str]) -> dict[str, Json]:
    """Return the installed version of each distribution, null for those not installed."""
    versions: dict[str, Json] = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def host_fields() -> dict[str, Json]:
    """Return what the CPU's own arithmetic depends on."""
    import torch

    return {
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "cpu": cpu_model(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        **settings_fields(torch.device("cpu")),
    }


def settings_fields(device: torch.device) -> dict[str, Json]:
    """Return those of torch's settings that may change a bit; a program can, at any time."""
    import torch

    if device.type == "cuda":
        matmul = torch.backends.cuda.matmul
        return {
            "preferred_blas": str(torch.backends.cuda.preferred_blas_library()),
            "float32_precision": _precision(matmul),
            **{name: getattr(matmul, name, None) for name in _PRODUCTS},
            **{name: _called(torch.backends.cuda, name) for name in _WORKSPACES},
        }
    onednn: Any = torch.backends.mkldnn
    return {
        "threads": torch.get_num_threads(),
        "mkldnn": bool(onednn.enabled),
        "float32_precision": _precision(onednn.matmul),
        # for the CPU too, whatever the module is called
        **{name: _called(torch.backends.cuda, name) for name in _ATTENTIONS},
    }


def cuda_fields() -> dict[str, Json]:
    """Return what the GPU's arithmetic depends on."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "driver": _driver_version(),
        "cuda": torch.version.cuda,
        "cublas": library_versions(("nvidia-cublas", "nvidia-cublas-cu12")),
        "cublas_loaded": _loaded_cublas(),
        **settings_fields(torch.device("cuda")),
    }


def _precision(products: Any) -> str:
    """Return how float32 operands are multiplied, ``ieee`` where nobody has set it."""
    precision: str = products.fp32_precision
    return "ieee" if precision == "none" else precision


def _called(module: Any, name: str) -> Json:
    """Return what a function of torch says; None where this version of it has none."""
    function = getattr(module, name, None)
    return None if function is None else function()


def _loaded_cublas() -> int | None:
    """Return the version of the cuBLASLt that torch loaded, as it says itself: 130200 is 13.2.

    None where torch holds it inside a library of its own, whose build ``torch_build`` names.
    """
    import torch

    major = str(torch.version.cuda).partition(".")[0]
    try:  # by this name the loader returns the one that is loaded
        library = ctypes.CDLL(f"libcublasLt.so.{major}")
    except OSError:
        return None
    library.cublasLtGetVersion.restype = ctypes.c_size_t
    return int(library.cublasLtGetVersion())


def _driver_version() -> str | None:
    """Return the NVIDIA driver's version; None where neither the system nor its tool says it."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
        if found := re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text):
            return found[1]
    except OSError:
        pass  # a container without the driver's /proc entry: ask nvidia-smi
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def environment_fields() -> dict[str, Json]:
    """Return the variables that can choose other kernels, those that are set."""
    return {name: spelled(os.environ[name]) for name in _ENVIRONMENT if name in os.environ}


def software_fields() -> dict[str, Json]:
    """Return the versions of everything that computes."""
    names = ("torch", "transformers", "numpy", "triton", "cupy-cuda12x", "cupy-cuda13x")
    return library_versions(names)


def numerics_fields(
    model: Qwen3,
    shape: BatchShape,
    *,
    isolation: str,
    reduction: str,
    n_ids: int,
    weights_sha256: str,
) -> dict[str, Json]:
    """Return everything that may change a bit of a score; its hash is the numerics key.

    Raises DeviceError where a part of it can't be told.
    """
    import torch

    from scorer.cuda.device import sources_sha256

    where = cuda_fields() if model.device.type == "cuda" else host_fields()
    if "driver" in where and where["driver"] is None:
        raise DeviceError(
            "the version of the NVIDIA driver, to which scores are tied, is neither in "
            "/proc/driver/nvidia/version nor told by nvidia-smi; in a container set "
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility, or use --device cpu"
        )
    return {
        "weights_sha256": weights_sha256,
        "config_sha256": sha256_of(model.checkpoint.config),
        "n_ids": n_ids,
        "device": model.device.type,
        "dtype": str(model.dtype).removeprefix("torch."),
        "isolation": isolation,
        "tokens_per_forward": shape.tokens,
        "rows_per_forward": shape.rows,
        "attention": model.attention,
        "rotation_sha256": model.rotation_sha256,
        "torch_build": hashlib.sha256(torch.__config__.show().encode()).hexdigest(),
        "reduction": reduction,
        "kernels_sha256": {**sources_sha256()} if reduction == "device" else None,
        "code_sha256": hash_files(Path(__file__).parent / name for name in _COMPUTES),
        "environment": environment_fields(),
        **software_fields(),
        **where,
    }


def write_manifest(path: Path | str, manifest: Mapping[str, Any]) -> None:
    """Write a manifest as indented JSON, replacing the file atomically; ``-`` is not served."""
    text = json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    replace_file(Path(path), text.encode())
