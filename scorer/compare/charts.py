"""Bars with intervals, as SVG text: pure functions, colours from the page's CSS variables.

Every chart says in words what it shows (``aria-label``), writes its values beside its marks, and
needs no script.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH = 340
_WIDE = 720
_LEFT = 42
_RIGHT = 6
_TOP = 26
_PLOT = 150
_MANY = 10
"""Bars up to which a chart has a third of the page; more have its whole width."""
_LEAST_SLOT = 22
"""Width of a bar with its gap, below which values are left to the axis."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: what stands below it, its height and interval, and what stands above it.

    value: None for a place without a figure. note: a second line below.
    """

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    text: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Reference:
    """A dashed line across the bars and what it stands for."""

    value: float
    name: str


def bars(
    title: str,
    items: Sequence[Bar],
    *,
    top: float | None = None,
    reference: Reference | None = None,
    percent: bool = True,
    compact: bool = False,
) -> str:
    """Return an SVG of vertical bars from 0 to ``top`` (None: what the bars need).

    percent: heights are fractions and the axis is in percent; else they are counts. More than
    _MANY bars make a wide chart, unless ``compact``.
    """
    highest = top if top is not None else _nice(_tallest(items, reference))
    if percent:
        highest = min(highest, 1.0)
    width = _WIDE if len(items) > _MANY and not compact else _WIDTH
    notes = any(item.note for item in items)
    height = _TOP + _PLOT + (38 if notes else 24)
    parts = [
        (
            f'<svg class="{"chart wide" if width == _WIDE else "chart"}" role="img" '
            f'viewBox="0 0 {width} {height}" '
            f'aria-label="{escape(_in_words(title, items, reference, percent=percent))}">'
        )
    ]
    for step in range(5):
        value = highest * step / 4
        y = _y(value, highest)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{_LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">'
            f"{_tick(value, percent=percent)}</text>"
        )
    slot = (width - _LEFT - _RIGHT) / len(items)
    for place, item in enumerate(items):
        parts.append(_bar(item, _LEFT + slot * (place + 0.5), slot, highest))
    if reference is not None:
        y = _y(reference.value, highest)
        parts.append(
            f'<line class="reference" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{y:.1f}" '
            f'y2="{y:.1f}"/><text class="tick" x="{width - _RIGHT}" y="12" '
            f'text-anchor="end">┄ {escape(reference.name)}</text>'
        )
    return "".join([*parts, "</svg>"])


def _bar(item: Bar, centre: float, slot: float, highest: float) -> str:
    base = _TOP + _PLOT
    width = min(slot * 0.72, 54)
    parts = [
        (
            f'<text class="name" x="{centre:.1f}" y="{base + 16}" text-anchor="middle">'
            f"{escape(item.name)}</text>"
        ),
    ]
    if item.note:
        parts.append(
            f'<text class="tick" x="{centre:.1f}" y="{base + 31}" text-anchor="middle">'
            f"{escape(item.note)}</text>"
        )
    if item.value is None:
        parts.append(
            f'<text class="tick" x="{centre:.1f}" y="{base - 6}" text-anchor="middle">–</text>'
        )
        return "".join(parts)
    y = _y(item.value, highest)
    if item.value > 0:
        parts.append(
            f'<rect class="bar" x="{centre - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}" '
            f'height="{max(base - y, 0.75):.1f}" rx="2"/>'
        )
    above = y
    if item.low is not None and item.high is not None:
        above, below = _y(item.high, highest), _y(item.low, highest)
        cap = min(width / 4, 6)
        parts.append(
            f'<path class="interval" d="M{centre:.1f} {above:.1f}V{below:.1f}'
            f"M{centre - cap:.1f} {above:.1f}h{2 * cap:.1f}"
            f'M{centre - cap:.1f} {below:.1f}h{2 * cap:.1f}"/>'
        )
    if slot >= _LEAST_SLOT:
        parts.append(
            f'<text class="value" x="{centre:.1f}" y="{above - 5:.1f}" text-anchor="middle">'
            f"{escape(item.text)}</text>"
        )
    return "".join(parts)


def _y(value: float, highest: float) -> float:
    return _TOP + _PLOT * (1 - min(value / highest, 1.0))


def _tallest(items: Sequence[Bar], reference: Reference | None) -> float:
    heights = [item.high if item.high is not None else item.value for item in items]
    return max(
        [height for height in heights if height is not None]
        + [reference.value if reference is not None else 0.0, 1e-9]
    )


def _nice(value: float) -> float:
    """Return the smallest of 1, 2, 4, 6, 8 × a power of ten that leaves room above ``value``."""
    scale = 1.0
    while scale > value:
        scale /= 10
    while scale * 10 <= value:
        scale *= 10
    return next(step * scale for step in (1, 2, 4, 6, 8, 10, 20) if step * scale >= value * 1.08)


def _tick(value: float, *, percent: bool) -> str:
    if percent:
        return f"{value * 100:.4g} %"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.3g}"


def _in_words(
    title: str, items: Sequence[Bar], reference: Reference | None, *, percent: bool
) -> str:
    words = [f"{item.name}: {item.text or 'no figure'}" for item in items]
    if reference is not None:
        words.append(f"{reference.name}: {_tick(reference.value, percent=percent)}")
    return f"{title}. {'; '.join(words)}."
