"""Augmentation: moves the pixels of each training picture at random, on the device.

The place of a new pixel in the old picture is an affine map of its place, plus a smooth random
displacement. Both are sums of fixed fields, so the sampling grid of a whole batch is one matrix
product.

A new change of the pictures is a key in config/schema.py and code here. A change of places,
such as a perspective, adds fields and their coefficients (`draw`). A change of values, such as
noise, is a function of an extension. `__call__` applies it after `sample`, with random numbers of
its own, so that the numbers of the other changes stay the same.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from kindling.config import registry, schema
from kindling.config.rules import no_pictures
from kindling.data.loader import Block, random_stream
from kindling.data.sources.source import Source
from kindling.system.errors import InputError, first_line
from kindling.system.machine import to_device
from kindling.system.resources import require_memory

Array = np.ndarray[Any, np.dtype[np.floating[Any]]]
STREAM = 1  # spawn key; the permutation of an epoch uses the same seed without a spawn key
OWN_STREAM = 2  # and the place of the augmentation in augmentation.own
TRIED = 8  # pictures, with which an augmentation of an extension is tried
UNIFORM = 7  # numbers for a sample: 2 of shift, rotate, 2 of scale, shear, flip
KEPT = 0.999  # the share of a smooth field's variance that its fields must reproduce


class Augmentation:
    """Augments blocks, a batch at a time, because a batch stays in the cache and a block does not.

    The random numbers of a batch depend only on (seed, epoch, number of the batch); each of the R
    orders has its own seed. The numbers are drawn on the CPU, so that all devices see the same
    pictures. They are drawn for the batch of all ranks, and rank r of W takes every W-th: two ranks
    with batch size 50 see the same pictures as one with 100. Places outside a picture are zero.

    Augmentations of extensions follow. Their numbers depend on the rank too.
    """

    def __init__(
        self,
        config: schema.Augmentation,
        shape: Sequence[int],
        seeds: Sequence[int],
        batch_size: int,
        world_size: int = 1,
        epochs: int = 1,
    ) -> None:
        """`shape` is (C, H, W). `batch_size` is the batch size of one rank. `epochs` is the number
        of epochs of a whole training. Raises InputError for an augmentation of an extension that
        cannot be used."""
        self.own = [_Own(name, shape) for name in config.own]
        self.moves = config.chosen != ["own"]
        self.config, self.seeds, self.epochs = config, seeds, epochs
        self.batch, self.world_size = batch_size * world_size, world_size
        _, height, width = shape
        self.to_grid = torch.tensor([[2 / width], [2 / height]])  # pixels to grid_sample's units
        fields = affine_fields(height, width)
        if config.elastic:
            smooth = smooth_fields(height, width, config.elastic_sigma)
            fields = np.concatenate([fields, config.elastic * smooth])
        self.fields = torch.from_numpy(fields).float()

    @torch.no_grad()
    def __call__(self, block: Block, epoch: int, first: int, rank: int = 0) -> None:
        """Augments a block in place; its first batch is number `first` of the epoch, from 0."""
        for number, batches in enumerate(block.features, first):
            for seed, pictures in zip(self.seeds, batches, strict=True):
                if self.moves:
                    drawn = self.draw(seed, epoch, number)[: len(pictures) * self.world_size]
                    pictures.copy_(self.sample(pictures, drawn[rank :: self.world_size]))
                for place, own in enumerate(self.own):
                    kind = OWN_STREAM, place
                    random = random_stream(seed, epoch, number, rank, kind=kind)
                    with torch.autocast(pictures.device.type, enabled=False):
                        pictures.copy_(own(pictures, random))

    def draw(self, seed: int, epoch: int, batch: int) -> Tensor:
        """Coefficients of the fields for the x and the y coordinate in the old picture, in
        grid_sample's units: (N, 2, fields) float32, a row for each sample of all ranks.

        N is always the size of a full batch, because the number of draws would change the numbers.
        """
        random = random_stream(seed, epoch, batch, kind=[STREAM])
        single = torch.float32  # the default differs in a run of precision 64
        uniform = torch.rand(UNIFORM, self.batch, generator=random, dtype=single).numpy()
        drawn = torch.randn(self.batch, 2, len(self.fields), generator=random, dtype=single)
        strength = self.strength(epoch)
        drawn[:, :, :3] = torch.from_numpy(self._affine_maps(uniform, strength))
        drawn[:, :, 3:] *= strength
        drawn *= self.to_grid
        if self.config.flip:
            drawn[uniform[6] < 0.5, 0] *= -1
        return drawn

    def strength(self, epoch: int) -> float:
        """The factor of all changes but a flip: 1, and in the last epochs one that falls linearly,
        so that it would be 0 after the end."""
        annealed = self.config.anneal * self.epochs
        return min(1.0, (self.epochs - epoch) / annealed) if annealed else 1.0

    def _affine_maps(self, uniform: Array, strength: float) -> Array:
        """A map (2, 3) for each column of `uniform`, (UNIFORM, N) in [0, 1)."""
        config, symmetric = self.config, strength * (2 * uniform - 1)  # in [-strength, strength)
        return inverse_maps(
            shift=config.shift * symmetric[0:2],
            angle=config.rotate * symmetric[2],
            scale=1 + config.scale * symmetric[3:5],
            shear=config.shear * symmetric[5],
        )

    def sample(self, pictures: Tensor, coefficients: Tensor) -> Tensor:
        """New pictures (B, C, H, W), by bilinear sampling; coefficients (B, 2, fields)."""
        size, _, height, width = pictures.shape
        fields = self.fields = self.fields.to(pictures)
        weights = to_device(coefficients.reshape(2 * size, -1), pictures.device).to(pictures)
        with torch.autocast(pictures.device.type, enabled=False):  # bf16 is too coarse for places
            # grid_sample is faster on planes of x and y than on pairs.
            grid = (weights @ fields).view(size, 2, height, width).permute(0, 2, 3, 1)
            return F.grid_sample(pictures, grid, align_corners=False)


class _Own:
    """An augmentation of an extension."""

    def __init__(self, name: str, shape: Sequence[int]) -> None:
        """Raises InputError unless the function can change pictures (N, *shape), and draws only
        from its generator."""
        self.where = f"augmentation.own={name}: {registry.location('augmentation', name)}"
        self.apply: Callable[[Tensor, torch.Generator], Any] = registry.resolve(
            "augmentation", name
        )
        pictures = torch.rand(TRIED, *shape, generator=random_stream(0), dtype=torch.float32)
        try:
            found = [self(pictures.clone(), random_stream(0)).float() for _ in range(2)]
        except InputError:
            raise
        except Exception as error:  # of any code
            raise InputError(
                f"{self.where} fails for pictures {tuple(pictures.shape)} ({type(error).__name__}: "
                f"{first_line(error)}); it gets pictures (N, C, H, W) and a torch.Generator, and "
                "returns pictures (N, C, H, W)"
            ) from error
        if not found[0].isfinite().all():
            raise InputError(f"{self.where}: must return finite numbers")
        if not torch.equal(*found):
            raise InputError(
                f"{self.where}: draws numbers that are not of its generator, so a resumed run "
                "would differ; write torch.rand(..., generator=generator)"
            )

    def __call__(self, pictures: Tensor, random: torch.Generator) -> Tensor:
        found = self.apply(pictures, random)
        if not isinstance(found, Tensor) or found.shape != pictures.shape:
            what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise InputError(
                f"{self.where}: returns {what} for pictures {tuple(pictures.shape)}, must return "
                "the changed pictures in the same shape"
            )
        return found


def build_augmentation(
    config: schema.Augmentation,
    source: Source,
    seeds: Sequence[int],
    batch_size: int,
    world_size: int,
    epochs: int = 1,
) -> Augmentation | None:
    """The augmentation, or None if it is off. Raises InputError unless samples are (C, H, W)."""
    if not config.chosen:
        return None
    if len(source.shape) != 3:
        raise InputError(no_pictures(config.model_dump(), source.shape, source.name))
    return Augmentation(config, source.shape, seeds, batch_size, world_size, epochs)


def inverse_maps(*, shift: Array, angle: Array, scale: Array, shear: Array) -> Array:
    """Maps places in the new picture to places in the old, (N, 2, 3): the factors of x and y and a
    constant, in pixels from the centre, x to the right and y down.

    A picture is scaled by `scale` (2, N: width and height), sheared along x by `shear` degrees
    (N,), turned clockwise by `angle` degrees (N,), and shifted right and down by `shift` (2, N)
    pixels, in this order, as in torchvision.transforms.functional.affine.
    """
    cos, sin = np.cos(np.radians(angle)), np.sin(np.radians(angle))
    tan = np.tan(np.radians(shear))
    maps = np.zeros((len(angle), 2, 3))
    maps[:, 0, 0], maps[:, 0, 1] = cos - sin * tan, sin + cos * tan
    maps[:, 1, 0], maps[:, 1, 1] = -sin, cos
    maps /= scale.T[:, :, None]
    maps[:, :, 2] = -(maps[:, :, 0] * shift[0, :, None] + maps[:, :, 1] * shift[1, :, None])
    return maps


def affine_fields(height: int, width: int) -> Array:
    """The fields of an affine map, (3, H·W): x and y in pixels from the centre, and 1."""
    y, x = np.mgrid[:height, :width].reshape(2, -1)
    return np.stack([x - (width - 1) / 2, y - (height - 1) / 2, np.ones(x.shape)])


def smooth_fields(height: int, width: int, sigma: float) -> Array:
    """Fields (k, H·W) of a random displacement. Their sum, weighted by k standard normal numbers,
    has standard deviation 1 at each pixel and is as smooth as white noise after a Gaussian filter
    of `sigma` pixels.

    Simard, Steinkraus, Platt (2003) smooth a random number for each pixel, so that displacements at
    distance d have a correlation of exp(-d²/4σ²). The fields are the strongest eigenvectors of that
    correlation matrix (Karhunen–Loève): 26 instead of 784 numbers for 28 × 28 pixels and sigma 5.5.
    Simard's displacements become weaker at the borders; these do not. Simard's strength alpha
    corresponds to a standard deviation of alpha / (2 σ √(3π)) pixels: 1.4 for alpha 34 and σ 4.
    """
    largest = max(height, width)
    require_memory(
        f"an elastic augmentation of pictures of {height} × {width} pixels needs",
        5 * 8 * largest**2,
        "augmentation.elastic=0",
    )
    rows, columns = _modes(height, sigma), _modes(width, sigma)
    variances = np.outer((rows**2).sum(1), (columns**2).sum(1)).ravel()
    order = np.argsort(-variances, kind="stable")
    count = np.searchsorted(np.cumsum(variances[order]), KEPT * height * width) + 1
    require_memory(
        f"augmentation.elastic_sigma={sigma:g} for pictures of {height} × {width} pixels needs",
        3 * 8 * int(count) * height * width,
        "a larger augmentation.elastic_sigma, or augmentation.elastic=0",
    )
    row, column = np.divmod(order[:count], width)
    fields: Array = (rows[row, :, None] * columns[column, None, :]).reshape(len(row), -1)
    fields /= np.linalg.norm(fields, axis=0)  # makes up for the share that KEPT left out
    return fields


def _modes(size: int, sigma: float) -> Array:
    """The eigenvectors along one axis times the roots of their eigenvalues, (size, size)."""
    places = np.arange(size)
    values, vectors = np.linalg.eigh(np.exp(-((places[:, None] - places) ** 2) / (4 * sigma**2)))
    vectors *= np.where(vectors[0] < 0, -1, 1)  # otherwise signs may differ between machines
    modes: Array = (vectors * np.sqrt(values.clip(0))).T
    return modes
