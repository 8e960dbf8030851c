"""The compile helper finds what is wrong, and lets pass what is right."""

from __future__ import annotations

import pytest

from tests import nvrtc

DOUBLES = """
extern "C" __global__ void doubles(const float* in, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2.0f * in[i];
}
"""

# 256 KiB of static shared memory: good C++, but more than any GPU has.
TOO_LARGE = """
extern "C" __global__ void too_large(float* out) {
    __shared__ float all[65536];
    all[threadIdx.x] = out[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = all[threadIdx.x ^ 1];
}
"""


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_120", "compute_90"])
def test_good_source_compiles_without_a_word(architecture: str) -> None:
    assert nvrtc.compile(DOUBLES, [f"-arch={architecture}"]) == ""


def test_defines_reach_the_source() -> None:
    source = DOUBLES.replace("2.0f", "FACTOR")

    with pytest.raises(nvrtc.CompileError, match='identifier "FACTOR" is undefined'):
        nvrtc.compile(source, ["-arch=sm_90"])
    assert nvrtc.compile(source, ["-arch=sm_90", "-DFACTOR=2.0f"]) == ""


def test_a_warning_is_in_the_log() -> None:
    source = DOUBLES.replace("int i", "int unused = 1; int i")

    assert "unused" in nvrtc.compile(source, ["-arch=sm_90"])


def test_broken_source_raises_with_the_line() -> None:
    with pytest.raises(nvrtc.CompileError, match=r'\(4\): error: .*"missing" is undefined'):
        nvrtc.compile(DOUBLES.replace("in[i]", "missing[i]"), ["-arch=sm_90"])


def test_machine_code_is_made_so_the_assembler_has_its_say() -> None:
    with pytest.raises(nvrtc.CompileError, match="too much shared data"):
        nvrtc.compile(TOO_LARGE, ["-arch=sm_90"])
    assert nvrtc.compile(TOO_LARGE, ["-arch=compute_90"]) == ""


def test_an_unknown_option_raises() -> None:
    with pytest.raises(nvrtc.CompileError, match="no-such-option"):
        nvrtc.compile(DOUBLES, ["--no-such-option"])
