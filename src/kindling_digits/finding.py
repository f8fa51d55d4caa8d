"""Drawings in a photograph: found on uneven light and ruled paper, and cut out one by one.

The light is evened out and the page straightened. Then printed lines and frames are removed, and
the strokes that touch each other, or nearly do, are one drawing. Imports no torch.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from kindling.data.pictures import reduced, upright
from kindling.inference.pictures import Box, Invert
from kindling.system.errors import InputError
from kindling_digits.drawings import SPECK, Drawing, Levels, channels, cut_drawing

Mask = NDArray[np.bool_]
Slices = tuple[slice, slice]

GROUND_SIDE = 512  # pixels per side in which the light of the paper is measured
WIDEST = 1 / 10  # of the longer side: wider parts are paper, not strokes
NOISE = 6  # standard deviations of the paper that are not ink
FAINTEST = 0.06  # of the light; ink that takes less is not seen
FAINT = 0.25  # of the strongest ink of the picture; weaker ink is not seen
STROKE = 0.4  # of the strongest ink nearby; a stroke begins there
FAINT_STROKE = 0.1  # the same for printed lines
BORDER = 300  # a side less this many times is the edge of a scanned sheet
DESK = 1.6  # how many times lighter than the desk the paper is
PAPER = 0.05  # share of the picture that the paper takes, at least
TILT = 36  # degrees: the largest angle that is straightened
CLEAR = 1.25  # how much clearer than an average angle the best one must be
LINE, LINE_PART, DENSE = 0.35, 0.1, 0.8  # shares of a side that a printed line covers
FRAME = 0.8  # share of each of its sides that a frame covers
THIN_LINE, THIN_FRAME = 25, 10  # times their thickness is their length
LEAST_SIDE = 10  # pixels; smaller shapes are specks
LEAST_SHARE = 0.35  # of the median height of the shapes; smaller ones are specks, too
NEAR = 0.2  # of that height; parts as near as that may belong together
FLATTEST = 3.0  # a digit's width is less than this share of its height
PART = 0.01  # of the square of that height; smaller parts are specks
THIN = 0.25  # of the median ink per length; thinner shapes are rests of lines
SAME_LINE = 0.6  # of the median height; shapes of a line are not higher or lower than that
LAST_SHAPES = 2  # of a line, which say how high the line is there
EDGE = 2  # pixels around a shape that its soft edges take
MOST_SHAPES, MOST_PARTS = 1000, 3000
MOST_POINTS = 200_000  # of ink that measure the tilt


def find_drawings(
    image: Image.Image, invert: Invert = "auto", name: str = "the picture"
) -> list[tuple[Drawing, Box]]:
    """The drawings in a picture and their boxes, in reading order: line by line, each from left to
    right. Letters and stains are drawings, too; specks and straight lines are not. Raises
    InputError for more than MOST_SHAPES."""
    image = upright(image)
    smooth = [ndimage.gaussian_filter(levels.astype(np.float32), 1) for levels in channels(image)]
    inverted = _dark_on_light(smooth) if invert == "auto" else invert == "yes"
    ink, _ = max(
        (_ink(values if inverted else 255 - values) for values in smooth), key=lambda look: look[1]
    )
    angle = _tilt(ink >= 255 * FAINT_STROKE)
    turned = Image.fromarray(ink).rotate(angle, Image.Resampling.BICUBIC, expand=True)
    straight = np.asarray(turned)
    printed = _printed(straight >= 255 * FAINT_STROKE)
    numbered, places = _shapes((straight >= 255 * STROKE) & ~printed, printed)
    if len(places) > MOST_SHAPES:
        raise InputError(
            f"{name}: has {len(places):,} drawings, at most {MOST_SHAPES:,} are read; cut the "
            "picture into smaller ones"
        )
    found = []
    for number in _reading_order(places):
        place = places[number]
        shape = numbered[place] == number + 1
        rows, columns = np.nonzero(shape)
        pixels = np.stack([columns + place[1].start, rows + place[0].start], 1)
        box = _box(pixels, angle, turned.size, ink.shape[::-1], image.size)
        found.append((cut_drawing(_soft(straight, shape, place), inverted), box))
    return found


def _dark_on_light(channels: Sequence[NDArray[np.float32]]) -> bool:
    """Whether the ink is darker than its ground, by all channels (h, w) together: in one alone, the
    paper may be less clear than its edge."""
    strengths = {True: 0.0, False: 0.0}
    for values in channels:
        small = np.asarray(reduced(Image.fromarray(values), GROUND_SIDE))
        window = _window(small)
        away = (small - ndimage.gaussian_filter(small, window / 4)) ** 3  # below 0 for dark ink
        for light, sign in ((True, -1), (False, 1)):
            _, desk = _ground(small if light else 255 - small)
            strengths[light] += sign * float(away[~desk].sum())
    return strengths[True] >= strengths[False]


def _window(small: NDArray[np.float32]) -> int:
    side: int = max(small.shape)
    return max(3, round(side * WIDEST))


def _ink(values: NDArray[np.float32]) -> tuple[Levels, float]:
    """The ink (h, w) of a channel, dark on light: 255 where it is as strong as any nearby. And the
    share of the light that the strongest ink takes."""
    small = np.asarray(reduced(Image.fromarray(values), GROUND_SIDE))
    bare, desk = _ground(small)
    paper = ndimage.gaussian_filter(bare, _window(small) / 8)
    paper = np.asarray(Image.fromarray(paper).resize(values.shape[::-1])).clip(16)
    taken = 1 - values / paper  # the share of the light that the ink takes
    desk = np.asarray(Image.fromarray(desk).resize(values.shape[::-1]))
    taken[desk] = 0
    blank = taken[~desk]
    middle = np.median(blank)
    floor = middle + NOISE * 1.4826 * np.median(abs(blank - middle))
    strongest = float(np.quantile(taken, 1 - SPECK))
    if strongest < max(FAINTEST, 1.5 * floor):
        return np.zeros(values.shape, np.uint8), 0
    nearby = ndimage.maximum_filter(taken, round(max(values.shape) * WIDEST))
    peak = np.clip(nearby, max(FAINT * strongest, 1.5 * floor, FAINTEST), strongest)
    ink = (255 * ((taken - floor) / (peak - floor)).clip(0, 1)).astype(np.uint8)
    border = max(values.shape) // BORDER
    ink[:border], ink[:, :border] = 0, 0
    ink[len(ink) - border :], ink[:, ink.shape[1] - border :] = 0, 0
    return ink, strongest


def _ground(small: NDArray[np.float32]) -> tuple[NDArray[np.float32], Mask]:
    """The light of the paper without ink (h, w), and the darker desk around it with the edge of the
    paper. Shadows are less dark than a desk, or their light changes more slowly."""
    window = _window(small)
    bare, near = ndimage.grey_closing(small, (window, window)), window // 2
    edge = ndimage.maximum_filter(bare, near) > DESK * ndimage.minimum_filter(bare, near).clip(1)
    numbered, count = ndimage.label(~edge)
    light = ndimage.mean(bare, numbered, range(1, count + 1))
    large = np.bincount(numbered.ravel(), minlength=count + 1)[1:] >= PAPER * bare.size
    dark = DESK * light < light[large].max(initial=0)
    return bare, (edge | np.append(False, dark)[numbered]) & dark.any()


def _tilt(mask: Mask) -> float:
    """The angle in degrees, counterclockwise, that makes printed and written lines horizontal: the
    ink then falls into the fewest rows. 0 where no angle is clear, as for one digit."""
    rows, columns = np.nonzero(mask)
    pixels = np.stack([columns, rows], 1)[:: len(rows) // MOST_POINTS + 1]
    # Moved within their pixels: else the rows of the picture would be rows at 0 degrees only.
    points = pixels + np.random.default_rng(0).uniform(-0.5, 0.5, pixels.shape)
    row = max(2.0, max(mask.shape) / 400)

    def clearness(angle: float, row: float) -> float:
        across = points @ [-np.sin(np.radians(angle)), np.cos(np.radians(angle))] / row
        counts = np.bincount((across - across.min()).astype(int))
        return float(np.square(counts, dtype=float).sum())

    angles = np.arange(-TILT, TILT + 1.0)
    clear = [clearness(angle, row) for angle in angles] if len(points) else [0.0]
    best = int(np.argmax(clear))
    if not 0 < best < 2 * TILT or clear[best] < CLEAR * np.median(clear):
        return 0.0
    finer = angles[best] + np.arange(-10, 11) / 10
    return float(finer[np.argmax([clearness(angle, row / 2) for angle in finer])])


def _printed(mask: Mask) -> Mask:
    """The printed lines: those that cross much of the picture, and those of frames."""
    frames = _frames(mask)
    rest: Mask = mask & ~frames
    across, down = (
        _lines(part, LINE_PART * part.shape[1], LINE * part.shape[1], THIN_LINE)
        for part in (rest, rest.T)
    )
    return np.logical_or(frames | across, down.T)


def _lines(mask: Mask, part: float, length: float, thin: float) -> Mask:
    """The pixels of nearly horizontal lines: `part` pixels in a row are dense, `length` in all,
    which is at least `thin` times their thickness. Strokes that cross a line stay whole."""
    thick = ndimage.maximum_filter1d(mask, 3, 0)
    size = max(3, round(part))
    dense = ndimage.uniform_filter1d(thick.astype(np.float32), size, mode="constant") >= DENSE
    near: Mask = mask & ndimage.maximum_filter1d(dense, size)
    numbered, count = ndimage.label(ndimage.maximum_filter(near, 3), np.ones((3, 3)))
    if not count:
        return near
    lengths = np.array([across.stop - across.start for _, across in ndimage.find_objects(numbered)])
    thickness = np.bincount(numbered[near], minlength=count + 1)[1:] / lengths
    straight = (lengths >= length) & (lengths >= thin * thickness)
    near &= np.append(False, straight)[numbered]
    if not straight.any():
        return near
    near &= ~_opened(mask, round(1.5 * np.median(thickness[straight])) + 2)
    return near


def _opened(mask: Mask, height: int) -> Mask:
    """The pixels of vertical runs of at least `height`."""
    start = (height - 1) // 2 - height // 2  # of an even filter
    starts = ndimage.minimum_filter1d(mask, height, 0, mode="constant")
    runs: Mask = ndimage.maximum_filter1d(starts, height, 0, mode="constant", origin=start)
    return runs


def _frames(mask: Mask) -> Mask:
    """The lines of frames: shapes with a straight line along each of their four sides. The lines
    from side to side of a frame belong to it."""
    frames = np.zeros(mask.shape, bool)
    numbered, _ = ndimage.label(mask, np.ones((3, 3)))
    for number, place in enumerate(ndimage.find_objects(numbered), 1):
        shape = numbered[place] == number
        if min(shape.shape) < LEAST_SIDE:
            continue
        sides = (shape, shape[::-1], shape.T, shape.T[::-1])  # each as a top
        tops = (ndimage.maximum_filter1d(side[: len(side) // 5], 3, 0) for side in sides)
        if all(top.mean(1).max() >= FRAME for top in tops):
            height, width = shape.shape
            frames[place] |= _lines(shape, FRAME * width, FRAME * width / 2, THIN_FRAME)
            frames[place] |= _lines(shape.T, FRAME * height, FRAME * height / 2, THIN_FRAME).T
    return frames


def _shapes(mask: Mask, printed: Mask) -> tuple[NDArray[np.int32], list[Slices]]:
    """The numbers of the shapes from 1, 0 where there is none, and the place of each shape."""
    numbered, count = ndimage.label(mask, np.ones((3, 3)))
    if not count:
        return numbered, []
    areas = np.bincount(numbered.ravel())[1:]
    rest = np.bincount(numbered[ndimage.maximum_filter(printed, 5)], minlength=count + 1)[1:]
    areas[rest >= areas / 2] = 0  # the rest of a line is a speck
    boxes = np.array(
        [[r.start, c.start, r.stop, c.stop] for r, c in ndimage.find_objects(numbered)]
    )
    heights, widths = (boxes[:, 2:] - boxes[:, :2]).T
    whole = (heights >= LEAST_SIDE) & (widths < FLATTEST * heights) & (areas > 0)
    typical = np.median(heights[whole]) if whole.any() else LEAST_SIDE
    thickness = areas / np.maximum(heights, widths)
    usual = np.median(thickness[whole]) if whole.any() else 0
    parts = np.flatnonzero(areas >= PART * typical**2)
    parts = parts[np.argsort(areas[parts])][-MOST_PARTS:]
    owner = np.arange(count)
    for place, part in enumerate(parts[:-1]):
        others = parts[place + 1 :]
        other = _neighbour(boxes[part], boxes[others], typical)
        if other is not None:
            into = others[other]
            owner[owner == part] = into
            boxes[into, :2] = np.minimum(boxes[into, :2], boxes[part, :2])
            boxes[into, 2:] = np.maximum(boxes[into, 2:], boxes[part, 2:])
    heights, widths = (boxes[:, 2:] - boxes[:, :2]).T
    kept = (
        (owner == np.arange(count))
        & (np.maximum(heights, widths) >= max(LEAST_SIDE, LEAST_SHARE * typical))
        & (widths < FLATTEST * heights)
        & (areas >= PART * typical**2)
        & (thickness >= THIN * usual)
    )
    renumber = np.zeros(count + 1, np.int32)
    renumber[1:][kept] = np.arange(1, kept.sum() + 1)
    renumber[1:] = renumber[1:][owner]
    numbered = renumber[numbered]
    return numbered, ndimage.find_objects(numbered)


def _neighbour(part: NDArray[np.int64], others: NDArray[np.int64], typical: float) -> int | None:
    """The place of the shape that a smaller part belongs to, or None. Boxes are (top, left, bottom,
    right)."""
    height = part[2] - part[0]
    heights = others[:, 2] - others[:, 0]
    gaps = np.maximum(others[:, :2] - part[2:], part[:2] - others[:, 2:])  # negative: overlap
    near = gaps.clip(0).max(1) <= NEAR * typical
    union = np.maximum(others[:, 2], part[2]) - np.minimum(others[:, 0], part[0])
    below = (-gaps[:, 1] >= min(part[3] - part[1], 0.5 * typical) / 2) & (union <= 1.4 * typical)
    beside = (-gaps[:, 0] >= height / 2) & (height <= heights / 2)
    fits = np.flatnonzero(near & (below | beside))
    return int(fits[np.argmin(gaps[fits].clip(0).sum(1))]) if fits.size else None


def _reading_order(slices: list[Slices]) -> list[int]:
    """The places of the shapes in the list, line by line, each from left to right. A shape is in
    the line whose last shapes are nearest in height, if they are near enough."""
    middles = [(rows.start + rows.stop) / 2 for rows, _ in slices]
    near = SAME_LINE * float(np.median([rows.stop - rows.start for rows, _ in slices] or [0]))
    lines: list[list[int]] = []

    def level(line: list[int], last: int) -> float:
        return float(np.mean([middles[number] for number in line[-last:]]))

    for number in sorted(range(len(slices)), key=lambda n: slices[n][1].start):
        away = [abs(middles[number] - level(line, LAST_SHAPES)) for line in lines]
        if away and min(away) <= near:
            lines[int(np.argmin(away))].append(number)
        else:
            lines.append([number])
    lines.sort(key=lambda line: level(line, len(line)))
    return [number for line in lines for number in line]


def _soft(straight: Levels, shape: Mask, place: Slices) -> Levels:
    """The ink of one shape (h, w) with its soft edges, without its neighbours."""
    grown = ndimage.binary_dilation(np.pad(shape, EDGE), iterations=EDGE)
    rows, columns = (slice(axis.start, axis.stop + 2 * EDGE) for axis in place)
    ink = np.where(grown, np.pad(straight, EDGE)[rows, columns], 0)
    strongest = np.quantile(ink[grown], 0.9)
    soft: Levels = (ink * (255.0 / strongest)).clip(0, 255).astype(np.uint8)
    return soft


def _box(
    pixels: NDArray[np.int64],
    angle: float,
    turned: tuple[int, int],
    size: tuple[int, int],
    upright_size: tuple[int, int],
) -> Box:
    """The box in the upright picture of pixels (N, 2), x and y, of the straightened ink. All sizes
    are (width, height)."""
    cosine, sine = np.cos(np.radians(angle)), np.sin(np.radians(angle))
    back = np.array([[cosine, sine], [-sine, cosine]])
    points = (pixels + 0.5 - np.array(turned) / 2) @ back + np.array(size) / 2
    scale = np.ceil(max(upright_size) / max(size))
    low = ((points.min(0) - 0.5) * scale).round().clip(0, np.array(upright_size) - 1)
    high = ((points.max(0) + 0.5) * scale).round().clip(low + 1, upright_size)
    (x, y), (width, height) = low.astype(int).tolist(), (high - low).astype(int).tolist()
    return x, y, width, height
