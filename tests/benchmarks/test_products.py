"""The products of an epoch, by their number."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.products import products


@pytest.mark.parametrize("trials", [1, 3])
def test_products_are_those_of_an_epoch(trials: int) -> None:
    """Two operations for a weight and sample in each of: forward, gradient of the weights, and
    gradient of the hidden units, which the first layer does without."""
    epoch = products(1000, trials=trials, hidden=16)
    aten = torch.ops.aten

    def flops(_added_to: torch.Size, a: torch.Size, b: torch.Size, **_others: object) -> int:
        return 2 * a.numel() * b[-1]

    in_place = {aten.addmm_: flops, aten.baddbmm_: flops}
    with FlopCounterMode(display=False, custom_mapping=in_place) as counted:
        epoch()
    assert counted.get_total_flops() == 2 * 1000 * trials * 16 * (2 * 784 + 3 * 10)
