"""The forward and the reduction on an NVIDIA GPU: Triton kernels, CUDA graphs, ``kernels/*.cu``."""

from __future__ import annotations
