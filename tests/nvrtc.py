"""Compile CUDA C++ without a GPU: a small binding of NVRTC from the ``nvidia-cuda-nvrtc`` wheel."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.metadata import PackagePath

PACKAGE = "nvidia-cuda-nvrtc"


class CompileError(Exception):
    """NVRTC refused the source; the message is its log."""


def compile(source: str, options: Sequence[str]) -> str:  # noqa: A001  (read as nvrtc.compile)
    """Compile ``source`` and return NVRTC's log, which is empty when there is nothing to say.

    With ``-arch=sm_90`` the source goes all the way to machine code for that GPU, so that what only
    the assembler sees (shared memory beyond the limit, say) is found too; with
    ``-arch=compute_90`` it stops at PTX. Skips the calling test where NVRTC isn't installed.

    Raises:
        CompileError: the source doesn't compile, or an option is unknown.

    """
    nvrtc = _library()
    program = ctypes.c_void_p()
    _check(
        nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), None, 0, None, None),
        "nvrtcCreateProgram",
    )
    try:
        encoded = [option.encode() for option in options]
        arguments = (ctypes.c_char_p * len(encoded))(*encoded)
        status = nvrtc.nvrtcCompileProgram(program, len(encoded), arguments)
        size = ctypes.c_size_t()
        _check(nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)), "nvrtcGetProgramLogSize")
        buffer = ctypes.create_string_buffer(size.value)
        _check(nvrtc.nvrtcGetProgramLog(program, buffer), "nvrtcGetProgramLog")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    log = buffer.value.decode(errors="replace").strip()
    if status != 0:
        raise CompileError(log or f"NVRTC status {status} with options {list(options)}")
    return log


@cache
def _library() -> ctypes.CDLL:
    try:
        installed = files(PACKAGE) or []
    except PackageNotFoundError:
        pytest.skip(f"no NVRTC: pip install {PACKAGE} (Linux), part of the dev extra")
    # NVRTC opens its builtins by name alone, so the loader must know them by then.
    _load(installed, r"libnvrtc-builtins\.so\.[\d.]+")
    library = _load(installed, r"libnvrtc\.so\.\d+")
    program = ctypes.c_void_p
    library.nvrtcCreateProgram.argtypes = [
        ctypes.POINTER(program),
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
    ]
    library.nvrtcCompileProgram.argtypes = [program, ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
    library.nvrtcGetProgramLogSize.argtypes = [program, ctypes.POINTER(ctypes.c_size_t)]
    library.nvrtcGetProgramLog.argtypes = [program, ctypes.c_char_p]
    library.nvrtcDestroyProgram.argtypes = [ctypes.POINTER(program)]
    return library


def _load(installed: Sequence[PackagePath], pattern: str) -> ctypes.CDLL:
    [path] = [file for file in installed if re.fullmatch(pattern, file.name)]
    return ctypes.CDLL(str(path.locate()))


def _check(status: int, call: str) -> None:
    if status != 0:
        raise RuntimeError(f"{call} failed with status {status}")
