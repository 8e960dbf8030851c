"""What the system says of its processor."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from scorer.processor import cpu_flags, describe

ARM = """processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics{more}
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x{variant}
CPU part\t: 0x{part}
CPU revision\t: 1
"""


def test_a_cpu_is_known_by_name_and_flags() -> None:
    x86 = "model name\t: A CPU\nstepping\t: 1\nflags\t\t: fpu sse avx2\nbugs\t: none\n"
    told = [
        describe(text)
        for text in (
            x86,
            x86.replace("avx2", "avx2 amx_bf16"),
            x86.replace("A CPU", "Another"),
            ARM.format(more="", variant=3, part="d0c"),
            ARM.format(more=" sve bf16", variant=3, part="d0c"),
            ARM.format(more="", variant=1, part="d0c"),
            ARM.format(more="", variant=3, part="d4f"),
        )
    ]

    assert len(set(told)) == len(told)
    assert told[0].startswith("A CPU, 1, flags ")
    assert describe(x86.replace("fpu sse", "sse fpu")) == told[0]
    assert "0xd0c" in told[3]


def test_cpu_flags_are_those_of_the_system() -> None:
    if not Path("/proc/cpuinfo").is_file():
        pytest.skip("no /proc/cpuinfo: the system tells no flags there")
    flags = cpu_flags()
    assert list(flags) == sorted(set(flags))
    if platform.machine() == "x86_64":
        assert "sse2" in flags
