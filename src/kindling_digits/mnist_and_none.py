"""MNIST's digits, and as many drawings that are not digits, of the class `none`: strokes, letters
and signs, digits put together wrongly, and blots.

A model that trains on them as a class of their own also calls other drawings by this class
(Hendrycks, Mazeika, Dietterich: Deep Anomaly Detection with Outlier Exposure, 2019).
"""

import functools
from importlib import util
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional as F

from kindling.data.augmentation import inverse_maps
from kindling.data.sources.published import open_published, read_idx_set
from kindling.data.sources.source import DIGITS, Description, Source, Split
from kindling.inference.pictures import NONE
from kindling.system.machine import torch_threads
from kindling.system.terminal import progress
from kindling_digits.extension import MnistAndNone

LABELS = (*DIGITS, NONE)
TRAIN_SEED, TEST_SEED, PENS_SEED = 0, 1, 2
SIDE, BOX = 28, 20  # pixels of a picture, and of a drawing's longer side, as in MNIST
CHUNK = 1000  # pictures that are drawn at the same time
EDGE = 0.25  # of the strongest ink; a drawing begins there
FAINTEST = 0.5  # ink of a picture that is kept
POINTS = 16  # of a stroke
STROKES = 3  # in a picture, at most
# Letters and signs that look like no digit, in the fonts that come with matplotlib.
SIGNS = "ABCDEFGHJKLMNPQRTUVWXYadefhjkmnprtuvwxy&%@#?!+*=<>"
FONTS = ("DejaVuSans", "DejaVuSerif", "STIXGeneral")  # how their files' names begin
SYMMETRIC = (0, 1, 5, 8)  # a turned or mirrored one may be a digit
HEIGHT = 110  # of a letter, in pixels, before it is scaled


def open_source(config: MnistAndNone) -> Source:
    return open_published(config.name, config.root, _read)


def describe(_config: MnistAndNone) -> Description:
    return Description((1, 28, 28), len(LABELS))


def _read(name: str, root: Path) -> Source:
    """uint8. The training digits have strokes of various widths. The test set has MNIST's test
    digits as they are, and a fifth as many drawings that are not digits."""
    mnist = read_idx_set("mnist", root)
    train, test = mnist.train, mnist.test
    with torch_threads(1):  # more would wait for each other on a busy machine
        pens = with_other_pens(train.features.squeeze(1), PENS_SEED).unsqueeze(1)
        train = _with_none(train, pens, len(train), TRAIN_SEED)
        test = _with_none(test, test.features, len(test) // 5, TEST_SEED)
    return Source(name, train, test, LABELS)


def _with_none(digits: Split, pictures: Tensor, count: int, seed: int) -> Split:
    drawn = not_digits(digits.features.squeeze(1), digits.labels, count, seed).unsqueeze(1)
    none = torch.full((count,), LABELS.index(NONE))
    return Split(torch.cat([pictures, drawn]), torch.cat([digits.labels, none]))


def not_digits(digits: Tensor, labels: Tensor, count: int, seed: int) -> Tensor:
    """`count` drawings (count, 28, 28), uint8, light on dark, scaled and centred like MNIST's. Some
    are put together from `digits` (N, 28, 28), uint8, of the classes `labels` (N,)."""
    random = torch.Generator().manual_seed(seed)
    sizes = [min(CHUNK, count - first) for first in range(0, count, CHUNK)]
    shown = progress(sizes, "drawings that are not digits")
    return torch.cat([_of_all_kinds(digits, labels, size, random) for size in shown])


def _of_all_kinds(digits: Tensor, labels: Tensor, count: int, random: torch.Generator) -> Tensor:
    found = torch.empty(0, SIDE, SIDE)
    while len(found) < count:
        drawn = torch.cat([
            _strokes(3 * CHUNK // 10, random),
            _letters(3 * CHUNK // 10, random),
            _wrong_digits(digits, labels, 3 * CHUNK // 10, random),
            _blots(CHUNK // 10, random),
        ])  # fmt: skip
        drawn = _other_pens(_centred(drawn), random)
        found = torch.cat([found, drawn[drawn.amax((1, 2)) >= FAINTEST]])
    return _bytes(found[torch.randperm(len(found), generator=random)[:count]])


def with_other_pens(pictures: Tensor, seed: int) -> Tensor:
    """Pictures (N, 28, 28), uint8, in part with thicker, thinner or softer strokes."""
    random = torch.Generator().manual_seed(seed)
    chunks = torch.split(pictures, CHUNK)
    return torch.cat([_bytes(_other_pens(chunk.float() / 255, random)) for chunk in chunks])


def _bytes(pictures: Tensor) -> Tensor:
    return (255 * pictures).round().to(torch.uint8)


def _other_pens(pictures: Tensor, random: torch.Generator) -> Tensor:
    """Pictures (N, 28, 28) in [0, 1]: 30 % thicker, 20 % thinner, 20 % softer, all a bit darker."""
    soft, thick = pictures, pictures
    for axis in (1, 2):
        before, after = _neighbours(soft, axis)
        soft = (before + 2 * soft + after) / 4
        before, after = _neighbours(thick, axis)
        thick = torch.maximum(torch.maximum(before, after), thick)
    thin = 1.5 * soft
    for axis in (1, 2):
        thin = torch.minimum(thin, _neighbours(thin, axis)[1])
    pen = torch.rand(len(pictures), 1, 1, generator=random)
    chosen = torch.where(pen < 0.2, thin, torch.where(pen < 0.5, (soft + thick) / 2, soft))
    return (1.15 * torch.where(pen < 0.7, chosen, pictures)).clamp(0, 1)


def _neighbours(pictures: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """The pixel before and the pixel after each pixel; 0 outside the picture."""
    nothing = torch.zeros_like(pictures.narrow(axis, 0, 1))
    before = torch.cat([nothing, pictures.narrow(axis, 0, SIDE - 1)], axis)
    return before, torch.cat([pictures.narrow(axis, 1, SIDE - 1), nothing], axis)


def _centred(pictures: Tensor) -> Tensor:
    """Pictures (N, 28, 28): the drawing scaled to 20 pixels, its centre of mass on pixel (14, 14),
    as in MNIST."""
    places, ink = torch.arange(SIDE, dtype=torch.float32), pictures > EDGE
    sides, centres = [], []
    for axis in (1, 2):  # of rows, of columns
        there = ink.any(3 - axis)
        first, last = (torch.where(there, places, end) for end in (SIDE, -1))
        sides.append(last.amax(1) - first.amin(1) + 1)
        mass = pictures.sum(3 - axis)
        centres.append((mass * places).sum(1) / mass.sum(1).clamp(min=1e-6))
    scale = torch.maximum(*sides).clamp(min=4) / BOX
    rows, columns = (
        (centre[:, None] + scale[:, None] * (places - SIDE // 2) - (SIDE - 1) / 2) * 2 / SIDE
        for centre in centres
    )
    grid = torch.stack(
        [columns[:, None].expand(-1, SIDE, -1), rows[:, :, None].expand(-1, -1, SIDE)], 3
    )
    scaled = F.grid_sample(pictures.unsqueeze(1), grid, align_corners=False).squeeze(1)
    return scaled / scaled.amax((1, 2), keepdim=True).clamp(min=0.05)


def _strokes(count: int, random: torch.Generator) -> Tensor:
    """One to three Bézier curves of a pen. Where there are several, two fifths are straight; a lone
    straight stroke may be a 1."""
    time = torch.linspace(0, 1, POINTS)
    rest = 1 - time
    bernstein = torch.stack([rest**3, 3 * time * rest**2, 3 * time**2 * rest, time**3])
    places = torch.arange(float(SIDE))
    pens = 0.8 + 1.4 * torch.rand(count, 1, 1, generator=random)
    strokes = torch.randint(1, STROKES + 1, (count,), generator=random)
    pictures = torch.zeros(count, SIDE, SIDE)
    for number in range(STROKES):
        ends = 1 + 26 * torch.rand(count, 4, 2, generator=random)
        straight = (torch.rand(count, generator=random) < 0.4) & (strokes > 1)
        for inner, share in ((1, 1 / 3), (2, 2 / 3)):
            between = ends[:, 0].lerp(ends[:, 3], share)
            ends[:, inner] = torch.where(straight[:, None], between, ends[:, inner])
        distance = torch.full_like(pictures, torch.inf)
        points = torch.einsum("ep,nea->pan", bernstein, ends)  # (points, 2, count)
        for x, y in (places - points.unsqueeze(3)).square():  # from each column, from each row
            torch.minimum(distance, x[:, None] + y[:, :, None], out=distance)
        drawn = (1.2 * (pens - distance.sqrt()) + 0.5).clamp(0, 1)
        pictures = torch.where(
            strokes[:, None, None] > number, torch.maximum(pictures, drawn), pictures
        )
    return pictures


def _letters(count: int, random: torch.Generator) -> Tensor:
    """Letters and signs, turned, slanted and stretched."""
    chosen = _signs()[torch.randint(len(_signs()), (count,), generator=random)]
    drawn = 2 * torch.rand(4, count, generator=random).numpy() - 1  # in [-1, 1)
    maps = inverse_maps(
        shift=0 * drawn[:2], angle=15 * drawn[0], scale=1 + 0.25 * drawn[1:3], shear=15 * drawn[3]
    )
    grid = F.affine_grid(
        torch.from_numpy(maps).float(), [count, 1, SIDE, SIDE], align_corners=False
    )
    return F.grid_sample(chosen.unsqueeze(1), grid, align_corners=False).squeeze(1)


@functools.cache
def _signs() -> Tensor:
    """Each of SIGNS in each font, (fonts * signs, 28, 28) in [0, 1]."""
    pictures = []
    for path in _fonts():
        font = ImageFont.truetype(path, HEIGHT)
        for sign in SIGNS:
            left, top, right, bottom = font.getbbox(sign)
            canvas = Image.new("L", (int(right - left), int(bottom - top)))
            ImageDraw.Draw(canvas).text((-left, -top), sign, 255, font)
            scale = BOX / max(canvas.size)
            size = [max(1, round(side * scale)) for side in canvas.size]
            picture = Image.new("L", (SIDE, SIDE))
            picture.paste(
                canvas.resize((size[0], size[1]), Image.Resampling.BILINEAR),
                ((SIDE - size[0]) // 2, (SIDE - size[1]) // 2),
            )
            pictures.append(np.asarray(picture))
    return torch.from_numpy(np.stack(pictures)).float() / 255


def _fonts() -> list[Path]:
    """The files of the fonts; matplotlib is found, not imported."""
    spec = util.find_spec("matplotlib")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf"
    paths = [path for path in sorted(folder.glob("*.ttf")) if path.name.startswith(FONTS)]
    return [path for path in paths if "Display" not in path.name]


def _wrong_digits(digits: Tensor, labels: Tensor, count: int, random: torch.Generator) -> Tensor:
    """Halves of two digits side by side or one above the other, a digit over another, two digits in
    the place of one, and digits that are turned by 90° or mirrored. Fewer than `count`, because
    what may be a digit is left out: two parts of one class, and turned or mirrored 0, 1, 5, 8."""
    places = torch.randint(len(digits), (2, count), generator=random)
    first, second = digits[places].float() / 255
    left = torch.arange(SIDE) < SIDE // 2
    beside = F.interpolate(
        torch.cat([first, second], 2).unsqueeze(1), (SIDE // 2, SIDE), mode="bilinear"
    )
    together = [
        torch.where(left, first, second),
        torch.where(left[:, None], first, second),
        torch.maximum(first, second.roll((4, -5), (1, 2))),
        F.pad(beside.squeeze(1), (0, 0, SIDE // 4, SIDE // 4)),
    ]
    alone = [torch.rot90(first, 1, (1, 2)), torch.rot90(first, 3, (1, 2)), first.flip(2)]
    chosen = torch.randint(len(together) + len(alone), (count,), generator=random)
    made = torch.stack(together + alone)[chosen, torch.arange(count)]
    one, other = labels[places]
    symmetric = torch.isin(one, torch.tensor(SYMMETRIC))
    return made[torch.where(chosen < len(together), one != other, ~symmetric)]


def _blots(count: int, random: torch.Generator) -> Tensor:
    """Filled shapes with smooth edges."""
    coarse = torch.randn(count, 1, 7, 7, generator=random)
    heights = F.interpolate(coarse, (SIDE, SIDE), mode="bicubic", align_corners=True).squeeze(1)
    across = torch.linspace(-1, 1, SIDE) ** 2
    return (4 * (heights + 1.2 - 2.5 * (across + across[:, None]))).clamp(0, 1)
