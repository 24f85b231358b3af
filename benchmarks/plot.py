"""Plot: how much of what each bar allows a figure takes, as bars on a logarithmic scale, in one SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from report import Figure

LEAST, MOST = 0.05, 10.0
WIDTH, LABEL, VALUE, ROW, TOP = 980, 390, 190, 24, 64
"""Pixels: the whole, the names at the left, the values at the right, a row, and what stands above the rows."""
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#222}.t{font-size:15px;font-weight:600}.s{fill:#666;font-size:11px}"
    "line{stroke:#ccc}.bar{stroke:#222;stroke-width:1.5}.yes{fill:#2a8a57}.no{fill:#c7472f}svg{background:#fff}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.s{fill:#999}line{stroke:#444}.bar{stroke:#ddd}"
    "svg{background:#16181c}}"
)


def plot(title: str, figures: Sequence[Figure]) -> str:
    """The SVG; a figure that could not be measured has its row without a bar."""
    bottom, names = TOP + ROW * len(figures), [one.figure for one in figures]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 16}" role="img">',
        f"<style>{STYLE}</style><title>{escape(title)}</title>",
        f'<text class="t" x="12" y="24">{escape(title)}</text>',
    ]
    for tick in (0.1, 1, 10):
        at, kind = _at(tick), ' class="bar"' if tick == 1 else ""
        told = "the bar" if tick == 1 else f"{tick:g} x"
        parts.append(f'<line{kind} x1="{at:.0f}" x2="{at:.0f}" y1="{TOP - 8}" y2="{bottom}"/>')
        parts.append(f'<text class="s" x="{at:.0f}" y="{TOP - 14}" text-anchor="middle">{told}</text>')
    for number, one in enumerate(figures):
        y = TOP + ROW * number
        value = "not measured" if one.value is None else f"{one.value:.4g} {one.unit}"
        ratio = f" ({one.ratio:.3g} x)" if one.ratio is not None else ""
        beside = f", {one.baseline_name}" if names.count(one.figure) > 1 else ""
        parts.append(f'<text x="{LABEL - 8}" y="{y + 16}" text-anchor="end">{escape(one.figure + beside)}</text>')
        parts.append(f'<text x="{WIDTH - VALUE + 8}" y="{y + 16}">{escape(value + ratio)}</text>')
        if one.used is not None:
            width, kind = _at(one.used) - LABEL, "yes" if one.holds else "no"
            parts.append(f'<rect class="{kind}" x="{LABEL}" y="{y + 4}" width="{width:.1f}" height="{ROW - 8}"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _at(used: float) -> float:
    """Where on the scale that is."""
    inside = min(max(used, LEAST * 1.05), MOST)
    return LABEL + (WIDTH - LABEL - VALUE) * math.log(inside / LEAST) / math.log(MOST / LEAST)
