"""Masks of dropout and the bound of weights, by their numbers."""

import pytest
import torch

from kindling.models.closed_form import bound_rows, dropout_mask


@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.9])
def test_dropout_masks_drop_the_given_share(dropout: float) -> None:
    torch.manual_seed(0)
    mask = dropout_mask(torch.empty(1001, 999, dtype=torch.double), dropout)
    least, kept = sorted(set(mask.flatten().tolist()))
    assert (least, kept) == (0, pytest.approx(1 / (1 - dropout), rel=1e-4))
    dropped = (mask == 0).double()
    assert dropped.mean().item() == pytest.approx(dropout, abs=0.002)  # four deviations
    flat = dropped.flatten() - dropout
    for lag in (1, 2, 3, 4):  # numbers of one draw, and of the next
        assert (flat[lag:] * flat[:-lag]).mean().item() == pytest.approx(0, abs=0.001)
    torch.manual_seed(0)
    assert torch.equal(dropout_mask(torch.empty(1001, 999, dtype=torch.double), dropout), mask)


@pytest.mark.parametrize("rare", [2**-k for k in range(12, 25)])
def test_dropout_masks_keep_the_mean_at_high_rates(rare: float) -> None:
    """Up to the largest probability that a mask can have, 1 - 2⁻¹⁶."""
    torch.manual_seed(0)
    mask = dropout_mask(torch.empty(2**20), 1 - rare)
    kept = max(rare, 2**-16)
    assert (mask > 0).double().mean().item() == pytest.approx(kept, rel=0.9)
    assert set(mask.flatten().tolist()) == {0.0, 1 / kept}


def test_bound_rows_keeps_rows_below_the_bound() -> None:
    torch.manual_seed(0)
    weight = torch.randn(3, 5, 7, dtype=torch.double)
    expected = torch.stack([torch.renorm(each, 2, 0, 2.5) for each in weight])
    bounded = weight.clone()
    bound_rows(bounded, 2.5)
    assert torch.allclose(bounded, expected, atol=1e-6)
    below = weight.norm(dim=-1) <= 2.5
    assert 0 < below.sum() < below.numel()
    assert torch.equal(bounded[below], weight[below])
    assert (bounded.norm(dim=-1) <= 2.5 + 1e-12).all()
