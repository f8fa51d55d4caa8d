"""Colours and settings of all pictures, and how a picture is written. Matplotlib is imported when
something is drawn: most of a page needs only its colours."""

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cycler import cycler

from kindling.system.files import write_durably

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Paul Tol's bright scheme, which the colour-blind can tell apart, on white and on black.
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
MOST_COLOURED = len(COLOURS)
FAINT = "#8e8e98"  # visible on white and on black
INK, LINE = "#1c1c1e", "#d8d8dc"  # used for nothing else: a page replaces them by its theme's
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "kindling",
    "font.family": "sans-serif",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": LINE,
    "axes.prop_cycle": cycler(color=COLOURS),
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "text.parse_math": False,  # a dollar in a name is a dollar
}
# They have letters of other scripts; each system has some of them.
FURTHER_FONTS = (
    "Noto Sans CJK JP", "WenQuanYi Zen Hei", "Microsoft YaHei", "PingFang SC", "Malgun Gothic",
    "Arial Unicode MS", "Noto Sans",
)  # fmt: skip


def use_style() -> None:
    """Gives all later figures of the process the common style; for notebooks."""
    import matplotlib as mpl

    mpl.rcParams.update(STYLE)


@contextmanager
def styled() -> Iterator[None]:
    """Draws in the common style. A letter that no font has is a box, and is not told: browsers find
    more fonts for an SVG."""
    import matplotlib as mpl
    from matplotlib import font_manager

    installed = {font.name for font in font_manager.fontManager.ttflist}
    further = [name for name in FURTHER_FONTS if name in installed]
    families: Any = {"font.family": ["sans-serif", *further]}
    with mpl.rc_context({**STYLE, **families}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


def save_png(draw: "Callable[[], Figure]", path: Path) -> None:
    """Draws a figure in the common style and writes it durably."""
    content = io.BytesIO()
    with styled():
        draw().savefig(content, format="png", dpi=160)
    write_durably(path, content.getvalue())
