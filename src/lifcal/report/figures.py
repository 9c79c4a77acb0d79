"""Figures as inline SVG: bars, error bars, maps over the image. No script, no network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

COLORS = ("#0b6aa8", "#c2500a", "#1a7f5a")
"""Colors of the lens types, which color-blind people can distinguish."""

_BAR = "#8fb8d8"
_LINE = "#c2500a"
_WIDTH, _HEIGHT = 560.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 14.0, 12.0, 46.0


@dataclass(frozen=True)
class Mark:
    """A value with its standard deviation, at a place on the x axis."""

    x: float
    y: float
    sigma: float = 0.0
    title: str = ""


@dataclass(frozen=True)
class _Axis:
    """Mapping from values to pixels, with ticks at round numbers."""

    low: float
    high: float
    start_px: float
    end_px: float

    def place(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start_px + share * (self.end_px - self.start_px)

    def ticks(self, most: int) -> list[float]:
        step = round_step((self.high - self.low) / most)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [i * step for i in range(first, last + 1)]


def round_step(least: float) -> float:
    """Return the smallest of 1, 2, 5 times a power of ten that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= least)


def draw_bars(
    edges: Sequence[float],
    heights: Sequence[float | None],
    x_label: str,
    y_label: str,
    *,
    titles: Sequence[str] = (),
    line: Sequence[float] = (),
    marks: Sequence[Mark] = (),
) -> str:
    """Return bars between edges; a line through their middles; marks with error bars.

    Parameters
    ----------
    edges : (n + 1,) float
    heights : (n,) float or None
        None: no bar.
    x_label, y_label : str
        Labels of the axes, with units.
    titles : (n,) str, optional
        Texts that bars show when the pointer is on them.
    line : (n,) float, optional
    marks : sequence of Mark, optional
    """
    values = [value for value in heights if value is not None]
    values += [*line, 0.0]
    values += [mark.y + sign * mark.sigma for mark in marks for sign in (-1.0, 1.0)]
    x, y, parts = _frame(edges[0], edges[-1], min(values), max(values), x_label, y_label)
    zero = y.place(0.0)
    for i, height in enumerate(heights):
        if height is None:
            continue
        left, right, top = x.place(edges[i]), x.place(edges[i + 1]), y.place(height)
        gap = min(1.0, 0.15 * (right - left))
        title = titles[i] if titles else f"{edges[i]:.4g} to {edges[i + 1]:.4g}: {height:.4g}"
        parts.append(
            f'<rect x="{left + gap / 2:.1f}" y="{min(top, zero):.1f}" '
            f'width="{max(right - left - gap, 0.3):.2f}" height="{abs(zero - top):.1f}" '
            f'fill="{_BAR}"><title>{escape(title)}</title></rect>'
        )
    if line:
        middles = [(low + high) / 2 for low, high in pairwise(edges)]
        path = " ".join(
            f"{x.place(middle):.1f},{y.place(value):.1f}"
            for middle, value in zip(middles, line, strict=True)
        )
        parts.append(f'<polyline points="{path}" fill="none" stroke="{_LINE}" stroke-width="2"/>')
    parts += [_draw_mark(mark, x, y, _LINE, 0) for mark in marks]
    return _svg(parts)


def draw_series(
    series: Sequence[tuple[str, Sequence[Mark]]], x_label: str, y_label: str, band: float
) -> str:
    """Return marks with error bars, a color and shape for each series, and a band about zero.

    Parameters
    ----------
    series : sequence of (name, marks)
    x_label, y_label : str
    band : float
        Half the height of the band in which values are small.
    """
    marks = [mark for _, entries in series for mark in entries]
    places = [mark.x for mark in marks] or [0.0, 1.0]
    room = 0.06 * (max(places) - min(places)) or 0.5
    tops = [mark.y + mark.sigma for mark in marks] + [1.2 * band]
    lows = [mark.y - mark.sigma for mark in marks] + [-1.2 * band]
    high = max(tops) + 0.12 * (max(tops) - min(lows))  # the legend's
    x, y, parts = _frame(min(places) - room, max(places) + room, min(lows), high, x_label, y_label)
    parts.append(
        f'<rect x="{_LEFT}" y="{y.place(band):.1f}" width="{_WIDTH - _LEFT - _RIGHT}" '
        f'height="{y.place(-band) - y.place(band):.1f}" fill="#1a7f5a" opacity="0.12"/>'
    )
    parts.append(
        f'<path d="M{_LEFT} {y.place(0.0):.1f}H{_WIDTH - _RIGHT}" stroke="#555" '
        'stroke-dasharray="4 3"/>'
    )
    for i, (name, entries) in enumerate(series):
        color = COLORS[i % len(COLORS)]
        path = " ".join(f"{x.place(mark.x):.1f},{y.place(mark.y):.1f}" for mark in entries)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" opacity="0.5"/>')
        parts += [_draw_mark(mark, x, y, color, i) for mark in entries]
        place = _LEFT + 16 + 90 * i
        parts.append(_shape(place, _TOP + 10, color, i))
        parts.append(f'<text x="{place + 9:.1f}" y="{_TOP + 14}">{escape(name)}</text>')
    return _svg(parts)


def draw_map(
    cells: Sequence[Sequence[float | None]],
    image_size_px: Sequence[int],
    label: str,
    *,
    arrows: Sequence[tuple[float, float, float, float]] = (),
    unit_px: float = 0.0,
) -> str:
    """Return a map over the image, with a color bar and, on it, arrows.

    Parameters
    ----------
    cells : (n_rows, n_columns) float or None
        None: no value.
    image_size_px : (width, height)
    label : str
        Label of the color bar.
    arrows : sequence of (x, y, dx, dy), optional
        Middle and direction, in image px; drawn so long that `unit_px` is one cell.
    unit_px : float
    """
    width, height = image_size_px
    n_rows, n_columns = len(cells), len(cells[0])
    legend = 84.0
    span_x = _WIDTH - _LEFT - _RIGHT - legend
    span_y = span_x * height / width
    if span_y > 420.0:
        span_x, span_y = span_x * 420.0 / span_y, 420.0
    bottom = _TOP + span_y
    x = _Axis(0.0, float(width), _LEFT, _LEFT + span_x)
    y = _Axis(0.0, float(height), _TOP, bottom)
    known = [value for row in cells for value in row if value is not None]
    top = max(known, default=0.0) or 1.0
    cell_x, cell_y = span_x / n_columns, span_y / n_rows
    darkest = 0.5 if arrows else 1.0
    parts = []
    for i, row in enumerate(cells):
        for j, value in enumerate(row):
            shade = "#fff" if value is None else _shade(darkest * value / top)
            text = "none" if value is None else f"{value:.4g}"
            parts.append(
                f'<rect x="{_LEFT + j * cell_x:.2f}" y="{_TOP + i * cell_y:.2f}" '
                f'width="{cell_x + 0.3:.2f}" height="{cell_y + 0.3:.2f}" fill="{shade}">'
                f"<title>{text}</title></rect>"
            )
    scale = cell_x / unit_px if arrows else 0.0
    for left, up, dx, dy in arrows:
        start_x, start_y = x.place(left) - 0.5 * scale * dx, y.place(up) - 0.5 * scale * dy
        parts.append(_arrow(start_x, start_y, dx, dy, scale))
    parts.append(
        f'<rect x="{_LEFT}" y="{_TOP}" width="{span_x:.1f}" height="{span_y:.1f}" fill="none" '
        'stroke="#888"/>'
    )
    parts += _ticks_x(x, bottom, "x in px", 5) + _ticks_y(y, "y in px", 5)
    bar = _LEFT + span_x + 18
    bar_y = _Axis(0.0, top, bottom, _TOP + (22.0 if arrows else 0.0))
    steps = 24
    for i in range(steps):
        low, high = bar_y.place(top * i / steps), bar_y.place(top * (i + 1) / steps)
        parts.append(
            f'<rect x="{bar}" y="{high:.1f}" width="12" height="{low - high + 0.3:.1f}" '
            f'fill="{_shade(darkest * (i + 0.5) / steps)}"/>'
        )
    for tick in bar_y.ticks(5):
        parts.append(f'<text x="{bar + 16}" y="{bar_y.place(tick) + 4:.1f}">{tick:.4g}</text>')
    middle = (bar_y.start_px + bar_y.end_px) / 2
    parts.append(_upright(bar + 62, middle, label))
    if arrows:
        parts.append(_arrow(bar - 4, _TOP + 5, unit_px, 0.0, scale))
        parts.append(f'<text x="{bar + cell_x:.1f}" y="{_TOP + 9}">{unit_px:.2g} px</text>')
    return _svg(parts, bottom + _BOTTOM)


# Parts


def _frame(
    x_low: float, x_high: float, y_low: float, y_high: float, x_label: str, y_label: str
) -> tuple[_Axis, _Axis, list[str]]:
    """Return both axes with room above the data, and their ticks and labels."""
    if not x_high > x_low:
        x_low, x_high = x_low - 0.5, x_low + 0.5
    span = (y_high - y_low) or 1.0
    y_high += 0.08 * span
    y_low -= 0.08 * span if y_low < 0.0 else 0.0
    x = _Axis(x_low, x_high, _LEFT, _WIDTH - _RIGHT)
    y = _Axis(y_low, y_high, _HEIGHT - _BOTTOM, _TOP)
    grid = "".join(f"M{_LEFT} {y.place(tick):.1f}H{_WIDTH - _RIGHT}" for tick in y.ticks(5))
    parts = [f'<path d="{grid}" stroke="#e4e7ea"/>']
    parts.append(
        f'<path d="M{_LEFT} {_TOP}V{_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT}" fill="none" '
        'stroke="#888"/>'
    )
    return x, y, parts + _ticks_x(x, _HEIGHT - _BOTTOM, x_label) + _ticks_y(y, y_label)


def _ticks_x(axis: _Axis, bottom: float, label: str, most: int = 8) -> list[str]:
    parts = [
        f'<text x="{axis.place(tick):.1f}" y="{bottom + 17:.1f}" text-anchor="middle">{tick:.6g}'
        "</text>"
        for tick in axis.ticks(most)
    ]
    middle = (axis.start_px + axis.end_px) / 2
    return [
        *parts,
        f'<text x="{middle:.1f}" y="{bottom + 38:.1f}" text-anchor="middle" class="label">'
        f"{escape(label)}</text>",
    ]


def _ticks_y(axis: _Axis, label: str, most: int = 5) -> list[str]:
    parts = [
        f'<text x="{_LEFT - 7}" y="{axis.place(tick) + 4:.1f}" text-anchor="end">{tick:.6g}</text>'
        for tick in axis.ticks(most)
    ]
    return [*parts, _upright(14.0, (axis.start_px + axis.end_px) / 2, label)]


def _upright(x: float, y: float, label: str) -> str:
    return (
        f'<text transform="translate({x:.1f} {y:.1f}) rotate(-90)" text-anchor="middle" '
        f'class="label">{escape(label)}</text>'
    )


def _draw_mark(mark: Mark, x: _Axis, y: _Axis, color: str, shape: int) -> str:
    place, top, low = x.place(mark.x), y.place(mark.y + mark.sigma), y.place(mark.y - mark.sigma)
    title = mark.title or f"{mark.y:.4g} ± {mark.sigma:.2g}"
    return (
        f'<g><title>{escape(title)}</title><path d="M{place:.1f} {top:.1f}V{low:.1f}'
        f'M{place - 4:.1f} {top:.1f}h8M{place - 4:.1f} {low:.1f}h8" stroke="{color}" '
        'stroke-width="1.5"/>'
        f"{_shape(place, y.place(mark.y), color, shape)}</g>"
    )


def _shape(x: float, y: float, color: str, kind: int) -> str:
    if kind % 3 == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}"/>'
    if kind % 3 == 1:
        return f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" fill="{color}"/>'
    return f'<path d="M{x:.1f} {y - 5:.1f}l5 9h-10z" fill="{color}"/>'


def _arrow(x: float, y: float, dx: float, dy: float, scale: float) -> str:
    dx, dy = dx * scale, dy * scale
    length = math.hypot(dx, dy)
    if length < 0.5:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="0.8" fill="#222"/>'
    ux, uy = dx / length, dy / length
    head = min(5.0, 0.4 * length)
    tip_x, tip_y = x + dx, y + dy
    back_x, back_y = tip_x - head * ux, tip_y - head * uy
    return (
        f'<path d="M{x:.1f} {y:.1f}L{tip_x:.1f} {tip_y:.1f}'
        f"M{back_x - 0.5 * head * uy:.1f} {back_y + 0.5 * head * ux:.1f}L{tip_x:.1f} {tip_y:.1f}"
        f'L{back_x + 0.5 * head * uy:.1f} {back_y - 0.5 * head * ux:.1f}" fill="none" '
        'stroke="#222" stroke-width="1.1"/>'
    )


def _shade(share: float) -> str:
    """Return a color from near white to dark blue, even in lightness."""
    stops = ((247, 251, 255), (158, 202, 225), (49, 130, 189), (8, 48, 107))
    place = min(max(share, 0.0), 1.0) * (len(stops) - 1)
    i = min(int(place), len(stops) - 2)
    mixed = [
        round(low + (high - low) * (place - i))
        for low, high in zip(stops[i], stops[i + 1], strict=True)
    ]
    return f"#{mixed[0]:02x}{mixed[1]:02x}{mixed[2]:02x}"


def _svg(parts: Sequence[str], height: float = _HEIGHT) -> str:
    return f'<svg viewBox="0 0 {_WIDTH:.0f} {height:.0f}" role="img">{"".join(parts)}</svg>'
