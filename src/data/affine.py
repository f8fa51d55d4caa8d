"""Affine maps of pictures."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.floating[Any]]]


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
