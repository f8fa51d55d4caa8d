"""Augmentation: each picture that is trained on by a map of its own, on the device.

Where a pixel of the new picture lies in the old one is an affine map of its place, plus a smooth
random displacement. Both are sums of fixed fields, so that the sampling grid of a whole batch is
one matrix product.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from src.config import schema
from src.data.loader import Block
from src.data.sources.source import Source
from src.system.errors import InputError

STREAM = 1  # spawn key: the permutation of an epoch comes from the same seed without one
UNIFORM = 7  # numbers for a sample: 2 of shift, rotate, 2 of scale, shear, flip
KEPT = 0.999  # of the variance of a smooth random field, by the fields that it is made of

Array = np.ndarray[Any, np.dtype[np.floating[Any]]]


class Augmentation:
    """Augments the blocks of an epoch, a batch at a time: it stays in the cache, a block does not.

    The random numbers of a batch are a function of (seed, epoch, number of the batch) alone, for
    each of the R orders its own seed. They are drawn on the CPU, so that every device sees the
    same pictures, and for the batch of all ranks, of which rank r of W takes every W-th sample:
    two ranks at batch 50 see what one sees at batch 100. What lies outside of a picture is zero.
    """

    def __init__(
        self,
        config: schema.Augmentation,
        shape: Sequence[int],
        seeds: Sequence[int],
        batch_size: int,
        world_size: int = 1,
    ) -> None:
        """`shape` is a sample's, (C, H, W), `batch_size` a rank's."""
        self.config, self.seeds, self.batch, self.world_size = (
            config,
            seeds,
            batch_size * world_size,
            world_size,
        )
        _, height, width = shape
        self.to_grid = torch.tensor([[2 / width], [2 / height]])  # grid_sample's units from pixels
        fields = affine_fields(height, width)
        if config.elastic:
            smooth = smooth_fields(height, width, config.elastic_sigma)
            fields = np.concatenate([fields, config.elastic * smooth])
        self.fields = torch.from_numpy(fields).float()

    @torch.no_grad()
    def __call__(self, block: Block, epoch: int, first: int, rank: int = 0) -> None:
        """Augments in place a block whose first batch is number `first` of `epoch`, from 0."""
        for number, batches in enumerate(block.features, first):
            for seed, pictures in zip(self.seeds, batches, strict=True):
                coefficients = self.draw(seed, epoch, number)
                own = coefficients[: len(pictures) * self.world_size][rank :: self.world_size]
                pictures.copy_(self.sample(pictures, own))

    def draw(self, seed: int, epoch: int, batch: int) -> Tensor:
        """What each sample of a batch of all ranks takes of each field, (N, 2, fields) float32:
        the x, then the y coordinate in the old picture, in grid_sample's units.

        N is always that of a full batch: how many numbers are drawn would change them.
        """
        key = np.random.SeedSequence([seed, epoch, batch], spawn_key=(STREAM,))
        stream = torch.Generator().manual_seed(int(key.generate_state(1, np.uint64)[0]))
        single = torch.float32  # in a run of precision 64 the default is another
        uniform = torch.rand(UNIFORM, self.batch, generator=stream, dtype=single).numpy()
        found = torch.randn(self.batch, 2, len(self.fields), generator=stream, dtype=single)
        found[:, :, :3] = torch.from_numpy(self._affine_maps(uniform))
        found *= self.to_grid
        if self.config.flip:
            found[uniform[6] < 0.5, 0] *= -1
        return found

    def _affine_maps(self, uniform: Array) -> Array:
        """One for each column of `uniform` (UNIFORM, N) in [0, 1), within the ranges."""
        of, around = self.config, 2 * uniform - 1
        return inverse_maps(
            shift=of.shift * around[0:2],
            angle=of.rotate * around[2],
            scale=1 + of.scale * around[3:5],
            shear=of.shear * around[5],
        )

    def sample(self, pictures: Tensor, coefficients: Tensor) -> Tensor:
        """New pictures (B, C, H, W) from the old ones, bilinear; coefficients (B, 2, fields)."""
        size, _, height, width = pictures.shape
        fields = self.fields = self.fields.to(pictures)
        weights = coefficients.reshape(2 * size, -1).to(pictures)
        with torch.autocast(pictures.device.type, enabled=False):  # 8 bits do not place a pixel
            # Planes of x and of y, which grid_sample takes faster than pairs.
            grid = (weights @ fields).view(size, 2, height, width).permute(0, 2, 3, 1)
            return F.grid_sample(pictures, grid, align_corners=False)


def build_augmentation(
    config: schema.Augmentation,
    source: Source,
    seeds: Sequence[int],
    batch_size: int,
    world_size: int,
) -> Augmentation | None:
    """None where nothing is on.

    Raises InputError where the samples are no pictures.
    """
    if not config.chosen:
        return None
    if len(source.shape) != 3:
        raise InputError(schema.no_pictures(config.model_dump(), source.shape, source.name))
    return Augmentation(config, source.shape, seeds, batch_size, world_size)


def inverse_maps(*, shift: Array, angle: Array, scale: Array, shear: Array) -> Array:
    """From a place in the new picture to the one in the old, (N, 2, 3): factors of x and y, and a
    constant, in pixels from the centre; x to the right, y down.

    A picture is scaled by `scale` (2, N: of width and height), sheared along x and turned
    clockwise by `shear` and `angle` (N,) degrees, and shifted by `shift` (2, N) pixels to the
    right and down, in this order, as by torchvision.transforms.functional.affine.
    """
    cos, sin = np.cos(np.radians(angle)), np.sin(np.radians(angle))
    tan = np.tan(np.radians(shear))
    found = np.zeros((len(angle), 2, 3))
    found[:, 0, 0], found[:, 0, 1] = cos - sin * tan, sin + cos * tan
    found[:, 1, 0], found[:, 1, 1] = -sin, cos
    found /= scale.T[:, :, None]
    found[:, :, 2] = -(found[:, :, 0] * shift[0, :, None] + found[:, :, 1] * shift[1, :, None])
    return found


def affine_fields(height: int, width: int) -> Array:
    """What an affine map is made of, (3, H·W): x and y in pixels from the centre, and one."""
    y, x = np.mgrid[:height, :width].reshape(2, -1)
    return np.stack([x - (width - 1) / 2, y - (height - 1) / 2, np.ones(x.shape)])


def smooth_fields(height: int, width: int, sigma: float) -> Array:
    """Fields (k, H·W) whose sum by k standard normal numbers is a random displacement of standard
    deviation 1 everywhere, as smooth as white noise after a Gaussian of `sigma` pixels.

    Simard, Steinkraus, Platt 2003, smooth a random number for each pixel: their displacements at
    two pixels have a correlation of exp(-d²/4σ²) at distance d. The fields are the strongest
    eigenvectors of that matrix (Karhunen–Loève), which for pictures of 28 × 28 and a sigma of 5.5
    are 26 instead of 784; at the borders theirs grow weaker, these do not. Theirs of strength
    alpha has a standard deviation of alpha / (2 σ √(3π)) pixels: 1.4 for their 34 at σ = 4.
    """
    rows, columns = _modes(height, sigma), _modes(width, sigma)
    variances = np.outer((rows**2).sum(1), (columns**2).sum(1)).ravel()
    order = np.argsort(-variances, kind="stable")
    count = np.searchsorted(np.cumsum(variances[order]), KEPT * height * width) + 1
    row, column = np.divmod(order[:count], width)
    fields: Array = (rows[row, :, None] * columns[column, None, :]).reshape(len(row), -1)
    fields /= np.linalg.norm(fields, axis=0)  # what KEPT left out, so that the deviation is 1
    return fields


def _modes(size: int, sigma: float) -> Array:
    """The eigenvectors along one axis, (size, size), times the roots of their eigenvalues."""
    places = np.arange(size)
    values, vectors = np.linalg.eigh(np.exp(-((places[:, None] - places) ** 2) / (4 * sigma**2)))
    vectors *= np.where(vectors[0] < 0, -1, 1)  # else a sign may be another on another machine
    found: Array = (vectors * np.sqrt(values.clip(0))).T
    return found
