"""``scorer check`` and ``scorer diff``: are scores functions of their reads alone, bit by bit?"""

from __future__ import annotations
