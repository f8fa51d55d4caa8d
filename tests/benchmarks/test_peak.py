"""The peak of the machine, and shares of it."""

import numpy as np
import pytest

from benchmarks import peak
from benchmarks.measure import Spread
from benchmarks.peak import Peak, large_products, operations, take_peak


def test_operations_of_an_epoch() -> None:
    """Those of the products alone, which tests/benchmarks/test_products.py counts in torch."""
    assert operations((784, 32, 10), 1000) == 2 * 1000 * 32 * (2 * 784 + 3 * 10)
    assert operations((784, 10), 1) == 2 * 2 * 784 * 10  # no gradient of the inputs
    assert operations((5, 4, 3, 2), 7) == 2 * 7 * (2 * 20 + 3 * 12 + 3 * 6)


def test_the_peak_is_that_of_the_fastest_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "SIDE", 1000)  # 2 billion operations
    seconds = {
        "ours": [1.0], "torch.mm": [0.5, 0.25], "numpy.matmul": [0.1, 0.2], "scipy's sgemm": [1.0],
    }  # fmt: skip
    found = take_peak(seconds)
    assert seconds == {"ours": [1.0]}
    assert found.library == "numpy.matmul"
    assert found.gflops == pytest.approx({"torch.mm": 8, "numpy.matmul": 20, "scipy's sgemm": 2})
    assert str(found) == (
        "peak of the machine: numpy.matmul, of products in GFLOP/s: torch.mm 8.0, "
        "numpy.matmul 20.0, scipy's sgemm 2.0"
    )


def test_a_share_is_a_rate_divided_by_the_peak() -> None:
    found = Peak("torch.mm", {"torch.mm": 10.0, "numpy.matmul": 5.0})
    assert found.share(2e9, [0.4, 1.0, 2.0]) == pytest.approx(Spread(0.2, 0.1, 0.5))


def test_each_library_multiplies_the_whole_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, and into the memory that it was given: a copy would count as arithmetic."""
    monkeypatch.setattr(peak, "SIDE", 24)
    monkeypatch.setattr(peak, "REPEATS", 1)
    a, b = np.random.default_rng(0).random((2, 24, 24), np.float32)
    for library, contender in large_products().items():
        assert contender() > 0
        (product,) = contender.args  # type: ignore[attr-defined]
        kept = product.keywords.get("out", product.keywords.get("c"))
        found = np.asarray(kept)
        assert found.dtype == np.float32
        # SciPy computes the product of the transposed matrices.
        expected = a.T @ b.T if library == "scipy's sgemm" else a @ b
        np.testing.assert_allclose(found, expected, rtol=1e-5)
