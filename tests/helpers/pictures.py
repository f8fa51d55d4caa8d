"""Makes the pictures of a report for the README and docs/reports.md, from MNIST, light and dark.

make pictures
"""

import io
import os
import tempfile
from pathlib import Path
from typing import Any, Literal

from PIL import Image

import kindling
import src  # noqa: F401  # messages name a command as python -m src.NAME
from kindling.reports.page import write_report
from tests.helpers.browser import launched, opened

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SWEPT = ("model.hidden_sizes=[16],[32],[64]", "optimizer.lr=0.03,0.1,0.3,1", "seed=range(5)")
HIDDEN = "#sweep1-effects, #sweep1-settings { display: none; }"
WIDTH = 1000  # pixels
COLOURS = 128
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def main() -> None:
    with tempfile.TemporaryDirectory() as name, launched() as browser:
        os.chdir(name)
        sweep = Path("sweeps", "widths-rates")
        kindling.sweep("data=mnist", "trainer.max_epochs=6", *SWEPT, folder=sweep)
        page = write_report([sweep], models=False).absolute().as_uri()
        for scheme in SCHEMES:
            with opened(browser, page, width=WIDTH, scheme=scheme) as shown:
                shown.wait_for_selector("#sweep1-parallel .main-svg")
                shown.add_style_tag(content=HIDDEN)
                height = shown.locator("#sweep1-parallel").evaluate(
                    "each => each.offsetTop + each.offsetHeight"
                )
                path = PICTURES / ("report.png" if scheme == "light" else "report-dark.png")
                clip: Any = {"x": 0, "y": 0, "width": WIDTH, "height": height + 20}
                content = shown.screenshot(full_page=True, clip=clip)
                Image.open(io.BytesIO(content)).quantize(COLOURS).save(path, optimize=True)


if __name__ == "__main__":
    main()
