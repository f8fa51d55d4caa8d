"""Colours and settings of every picture."""

from typing import Any

# Paul Tol's bright scheme: told apart by the colour-blind, and on white as on black.
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
MOST_COLOURED = len(COLOURS)
FAINT = "#8e8e98"  # to be seen on white and on black
INK, LINE = "#1c1c1e", "#d8d8dc"  # of nothing else: in the page its theme replaces them
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "kindling",
    "font.family": "sans-serif",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": LINE,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "text.parse_math": False,  # names are what they are, dollars and all
}
