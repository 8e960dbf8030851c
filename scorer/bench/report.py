"""A benchmark for people: a table for the terminal, and a picture as one SVG file."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

from scorer.bench.figures import TITLES, Comparison, Figure, Report, StartUp
from scorer.errors import UsageError
from scorer.job.output import replace_file, writing
from scorer.progress import printable

_COLUMNS = (
    "reads/s",
    "tokens/s",
    "packed is",
    "of ceiling",
    "fill",
    "GPU busy",
    "peak GiB",
    "reads timed",
)
_PLAIN_WIDTH = 120
"""Columns where no terminal says how many it has."""


def show(report: Report) -> None:
    """Write tables and the circumstances to stdout."""
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    for comparison in report.comparisons:
        title = f"{report.model}, {comparison.about}"
        table = Table(title=printable(title), title_justify="left", box=None)
        table.add_column()
        for column in _COLUMNS:
            table.add_column(column, justify="right")
        for figure in comparison.figures:
            table.add_row(TITLES[figure.way], *_cells(figure, comparison, report.rounds))
        console.print(table)
        for figure in comparison.figures:
            if figure.status == "out_of_memory":
                console.print(f"{TITLES[figure.way]}: {printable(str(figure.reason))}")
        if comparison.shared_over:
            console.print(_sharing(comparison))
        console.print()
    table = Table(show_header=False, box=None)
    table.add_column(style="dim")
    table.add_column()
    for name, value in _circumstances(report):
        table.add_row(name, printable(value))
    console.print(table)


def _cells(figure: Figure, comparison: Comparison, rounds: int) -> Iterator[str]:
    if figure.status == "out_of_memory":
        yield from ("out of memory", *["–"] * (len(_COLUMNS) - 1))
        return
    ratio = comparison.packed_over.get(figure.way)
    peak = figure.peak_memory_bytes
    yield _number(figure.reads_per_second)
    yield _number(figure.tokens_per_second)
    yield "–" if ratio is None else f"{ratio:.2f} ×"
    yield _share(figure.share_of_ceiling)
    yield _share(figure.fill)
    yield _share(figure.gpu_busy)
    yield "–" if peak is None else f"{peak / 2**30:.1f}"
    yield f"{rounds} × {figure.reads:,}"


def _sharing(comparison: Comparison) -> str:
    """Say what computing each prefix once is worth, and whether it moved a bit."""
    (shared,) = (figure for figure in comparison.figures if figure.way == "shared")
    over = [
        f"{ratio:.2f} × {TITLES[way]}"
        for way, ratio in comparison.shared_over.items()
        if ratio is not None and way != "scored"
    ]
    bits = "the same bits" if shared.largest_difference == 0 else "NOT the same bits"
    return f"each prefix computed once: {', '.join(over)}; {bits} as apart"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _circumstances(report: Report) -> Iterator[tuple[str, str]]:
    yield "device", f"{report.device}, {report.dtype}"
    yield "batch shape", f"T = {report.tokens_per_forward}, R = {report.rows_per_forward}"
    samples = sorted(report.ceiling.samples)
    yield (
        "ceiling",
        (
            f"{_flops(report.ceiling.flops_per_second)} in {report.ceiling.n}³ products, "
            f"{_flops(samples[0])} to {_flops(samples[-1])} in {len(samples)} samples"
        ),
    )
    yield "weights", f"{report.weights_bytes / 2**30:.2f} GiB; {_layers(report)}"
    yield "process peak", f"{report.process_peak_bytes / 2**30:.2f} GiB resident"
    yield "start", _start(report.start_up)
    reasons = {one.gpu_busy_reason for c in report.comparisons for one in c.figures} - {None}
    for reason in sorted(filter(None, reasons)):
        yield "GPU busy", f"not measured: {reason}"
    yield "difference", _difference(report)
    yield "rounds", f"{report.rounds} of at least {report.forwards} forwards of real tokens each"
    yield "spread", _spread(report)
    yield "numerics key", report.numerics_key


def _flops(value: float) -> str:
    return f"{value / 1e12:,.1f} TFLOP/s" if value >= 1e12 else f"{value / 1e9:,.1f} GFLOP/s"


def _layers(report: Report) -> str:
    return f"{report.layer_parameters:,} parameters in the layers' matrices"


def _start(start_up: StartUp) -> str:
    parts = ", ".join(f"{one.name} {one.seconds:.1f}" for one in start_up.phases)
    total = f"unknown ({start_up.reason})"
    if start_up.seconds is not None:
        total = f"{start_up.seconds:.1f} s"
    return f"{total} from process to first score, {start_up.our_seconds:.1f} s ours ({parts})"


def _difference(report: Report) -> str:
    figures = [figure for one in report.comparisons for figure in one.figures]
    largest = max((figure.largest_difference or 0.0 for figure in figures), default=0.0)
    return f"at most {largest:.1e} nats between the ways' log-probabilities"


def _spread(report: Report) -> str:
    """Say how far the rounds of one way lie apart, which is how far a ratio is to be trusted."""
    times = [one.seconds for c in report.comparisons for one in c.figures if one.seconds]
    largest = max((max(seconds) / min(seconds) for seconds in times), default=1.0)
    return f"a way's slowest round took at most {largest:.2f} × its fastest"


_WIDTH = 760
_LEFT = 274
_RIGHT = 170
_BAR = 20
_ROW = 28
_HEAD = 58
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1b2230; }
.title { font-size: 17px; font-weight: 600; } .soft { fill: #5a6475; font-size: 12px; }
.kind { font-weight: 600; } .page { fill: #ffffff; }
.other { fill: #9aa5b6; } .packed { fill: #2f6bd8; } .scored { fill: #7aa7ff; }
.shared { fill: #1d9a6c; }
@media (prefers-color-scheme: dark) {
text { fill: #e6eaf1; } .soft { fill: #9aa5b6; } .page { fill: #12151b; }
.other { fill: #5a6475; } .packed { fill: #7aa7ff; } .scored { fill: #3d62a8; }
.shared { fill: #4fc89a; }
}
"""


def check_path(path: Path) -> None:
    """Raise UsageError for a picture that could not be written, before hours of measuring."""
    if path.suffix != ".svg":
        raise UsageError(f"--plot {path}: draws SVG; give a name that ends in .svg")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot {path}: no such folder; make it first")


def draw(report: Report, path: Path) -> None:
    """Write the picture, in the place of one that is there. Raises UsageError."""
    with writing(str(path)):
        replace_file(path, picture(report).encode())


def picture(report: Report) -> str:
    """Return a self-contained SVG: real tokens a second of every way, one scale for all prompts."""
    figures = [one for c in report.comparisons for one in c.figures]
    most = max((one.tokens_per_second or 0.0 for one in figures), default=0.0) or 1.0
    height = _HEAD + sum(34 + _ROW * len(one.figures) for one in report.comparisons) + 14
    title = f"{report.model}: real tokens a second"
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
            f'width="{_WIDTH}" height="{height}" role="img" aria-label="{_in_words(report)}">'
        ),
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<rect class="page" width="{_WIDTH}" height="{height}"/>',
        _text(14, 26, title, "title"),
        _text(14, 46, _under(report), "soft"),
    ]
    y = _HEAD
    for comparison in report.comparisons:
        y += 24
        parts.append(_text(14, y, comparison.about, "kind"))
        y += 10
        for figure in comparison.figures:
            parts.append(_row(figure, comparison, y, most))
            y += _ROW
    return "\n".join([*parts, "</svg>"]) + "\n"


def _row(figure: Figure, comparison: Comparison, y: int, most: float) -> str:
    kind = figure.way if figure.way in {"packed", "shared", "scored"} else "other"
    rate = figure.tokens_per_second or 0.0
    length = (_WIDTH - _LEFT - _RIGHT) * rate / most
    base = y + 15
    return (
        f'<text x="{_LEFT - 10}" y="{base}" text-anchor="end">{TITLES[figure.way]}</text>'
        f'<rect class="{kind}" x="{_LEFT}" y="{y}" width="{max(length, 1):.1f}" '
        f'height="{_BAR}" rx="3"/>'
        f'<text x="{_LEFT + length + 8:.1f}" y="{base}">{_said(figure, comparison)}</text>'
    )


def _said(figure: Figure, comparison: Comparison) -> str:
    if figure.status == "out_of_memory":
        return "out of memory"
    ratio = comparison.packed_over.get(figure.way)
    beside = "" if ratio is None or figure.way == "scored" else f" (packed: {ratio:.1f} ×)"
    if figure.way == "shared" and (gain := comparison.shared_over.get("packed")) is not None:
        beside = f" ({gain:.1f} × packed)"
    return _number(figure.tokens_per_second) + beside


def _under(report: Report) -> str:
    return (
        f"{report.device}, {report.dtype}, T = {report.tokens_per_forward}, "
        f"ceiling {_flops(report.ceiling.flops_per_second)}, median of {report.rounds} rounds"
    )


def _in_words(report: Report) -> str:
    words = [
        f"{one.about}: "
        + ", ".join(f"{TITLES[figure.way]} {_said(figure, one)}" for figure in one.figures)
        for one in report.comparisons
    ]
    return escape(f"{report.model}, real tokens a second. {'; '.join(words)}.")


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
