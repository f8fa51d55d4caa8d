"""A picture with a box around each drawing that was found, and its class."""

import io
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from src.data.pictures import WORKING_SIDE, eight_bits, reduced, upright
from src.data.sources.source import NONE
from src.inference.prediction import Prediction

READ, UNREAD = "#c2255c", "#e67700"  # of boxes with a class, and without


def draw_boxes(
    image: Image.Image, predictions: Sequence[Prediction], labels: Sequence[str]
) -> bytes:
    """A PNG file of the upright picture, reduced to WORKING_SIDE, with a box around each drawing,
    and above it its class and probability in percent. `labels` are the names of the classes."""
    whole = upright(image)
    picture = reduced(eight_bits(whole).convert("RGB"), WORKING_SIDE)
    scale = picture.width / whole.width
    pen = max(1, max(picture.size) // 600)
    font = ImageFont.load_default(max(12.0, max(picture.size) / 70))
    pencil = ImageDraw.Draw(picture)
    for prediction in predictions:
        if prediction.box is None:
            continue
        x, y, width, height = (side * scale for side in prediction.box)
        guess = prediction.guess
        name = labels[guess.best] if guess else NONE
        told = f"{name} ({guess.probability:.0%})" if guess else name
        colour = UNREAD if name == NONE else READ
        around = (x - pen, y - pen, x + width + pen - 1, y + height + pen - 1)
        pencil.rectangle(around, outline=colour, width=pen)
        pencil.text(
            (max(0.0, x - pen), max(0.0, y - 2 * pen)), told, colour, font, "lb" if y > 20 else "lt"
        )
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()
