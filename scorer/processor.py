"""The host's processor: what it is called, and the instruction sets that libraries choose by."""

from __future__ import annotations

import hashlib
import platform
import re
import subprocess
from pathlib import Path
from typing import Final

_CPU_INFO: Final = Path("/proc/cpuinfo")
_NAMES: Final = (
    *("model name", "cpu family", "model", "stepping"),  # x86
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision"),  # ARM
)
_FLAGS: Final = ("flags", "Features")  # x86, ARM


def cpu_model() -> str:
    """Return the processor's name and a hash of its flags; on macOS its name and the system."""
    try:
        return describe(_CPU_INFO.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        pass  # not Linux
    query = ["sysctl", "-n", "machdep.cpu.brand_string"]
    try:
        name = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        name = platform.processor() or "unknown"
    return f"{name}, {platform.platform()}"  # on macOS the system holds the library of products


def cpu_flags() -> tuple[str, ...]:
    """Return the processor's instruction-set flags, sorted; empty where the system tells none."""
    try:
        return _flags(_fields(_CPU_INFO.read_text(encoding="utf-8", errors="replace")))
    except OSError:
        return ()


def describe(cpuinfo: str) -> str:
    """Return what Linux's /proc/cpuinfo says of a processor: names, and a hash of flags."""
    fields = _fields(cpuinfo)
    digest = hashlib.sha256(" ".join(_flags(fields)).encode()).hexdigest()
    names = [fields[name] for name in sorted(_NAMES) if name in fields]
    return ", ".join([*names, f"flags {digest[:16]}"])


def _fields(cpuinfo: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w ]+?)\s*:\s*(.*)$", cpuinfo, re.MULTILINE))


def _flags(fields: dict[str, str]) -> tuple[str, ...]:
    return tuple(sorted({flag for name in _FLAGS for flag in fields.get(name, "").split()}))
