"""Colours and settings of all pictures."""

from typing import Any

# Paul Tol's bright scheme: distinct for colour-blind people, on white and on black.
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
MOST_COLOURED = len(COLOURS)
FAINT = "#8e8e98"  # visible on white and on black
INK, LINE = "#1c1c1e", "#d8d8dc"  # used for nothing else: the page replaces them by its theme's
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
    "text.parse_math": False,  # names may hold dollar signs
}
