"""The CUDA kernel: simulated against autograd, and compiled for GPUs that need not be there."""

import ctypes
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from kindling.native import kernel
from kindling.native.engine import ACTIVATIONS
from kindling.native.kernel import KernelError, Shape, arguments_type, compile_kernel, compiled
from tests.helpers.simulated_kernel import built, needs_compiler, simulate

ACTIVATE = {"relu": torch.relu, "tanh": torch.tanh, "gelu": F.gelu}
TUTORIAL = Shape((784, 32, 10), 100, True, "relu", 0.0)
SHAPES = [
    TUTORIAL,
    Shape((16, 8, 3), 8, True, "relu", 0.0),
    Shape((30, 20, 40, 5), 37, False, "tanh", 0.1),
    Shape((13, 70, 33, 2), 20, False, "gelu", 0.0),
    Shape((21, 7), 19, True, "relu", 0.2),
    Shape((1, 1, 2), 1, False, "relu", 0.0),
]
needs_nvrtc = pytest.mark.skipif(bool(kernel.why_absent()), reason=kernel.why_absent())


def drawn(number: int) -> Shape:
    """A random shape."""
    draw = np.random.default_rng(number)
    units = (
        draw.integers(1, 90), *draw.integers(1, 70, draw.integers(0, 4)), draw.integers(2, 40),
    )  # fmt: skip
    return Shape(
        tuple(map(int, units)), int(draw.integers(1, 70)), bool(draw.integers(2)),
        ACTIVATIONS[draw.integers(3)], float(draw.choice([0.0, 0.1])),
    )  # fmt: skip


@dataclass
class Case:
    """Trials of a shape with data, batches and rates of their own; they train in place."""

    shape: Shape
    seed: int
    trials: int = 2
    orders: int = 2
    batches: int = 3
    size: int = 0  # of the batches; 0: the shape's

    def __post_init__(self) -> None:
        stream, shape = torch.Generator().manual_seed(self.seed), self.shape
        self.size = self.size or shape.rows
        count, inputs, classes = 50, shape.units[0], shape.units[-1]
        if shape.whole_bytes:
            self.features = torch.randint(256, (count, inputs), generator=stream).byte()
        else:
            self.features = torch.randn(count, inputs, generator=stream)
        self.labels = torch.randint(classes, (count,), generator=stream)
        self.rows = torch.randint(count, (self.batches, self.orders, self.size), generator=stream)
        self.order_of = torch.randint(self.orders, (self.trials,), generator=stream).int()
        self.column_of = torch.randperm(self.trials, generator=stream).int()
        self.rates = torch.rand(self.batches, self.trials, generator=stream)
        self.losses = torch.zeros(self.batches, self.trials)
        self.correct = torch.zeros(self.batches, self.trials, dtype=torch.long)
        pairs = list(zip(shape.units, shape.units[1:], strict=False))
        self.weights = [torch.randn(self.trials, b, a, generator=stream) / a**0.5 for a, b in pairs]
        self.biases = [torch.randn(self.trials, b, generator=stream) / 10 for _, b in pairs]

    def arguments(self) -> ctypes.Structure:
        def pointers(tensors: list[Tensor]) -> Any:
            return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))

        tensors = (
            self.features, self.labels, self.rows, self.order_of, self.column_of, self.rates,
            self.losses, self.correct,
        )  # fmt: skip
        return arguments_type(self.shape.layers)(
            *(tensor.data_ptr() for tensor in tensors), pointers(self.weights),
            pointers(self.biases), self.batches, self.orders, self.size, self.trials,
        )  # fmt: skip

    def trained(self, *flags: str) -> list[Tensor]:
        simulate(self.shape, self.arguments(), self.trials, *flags)
        return [*self.weights, *self.biases, self.losses, self.correct]

    def by_autograd(self) -> list[Tensor]:
        """What `trained` must return, in float64. Leaves everything as it is."""
        activate, layers = ACTIVATE[self.shape.activation], self.shape.layers
        weights = [value.double().clone() for value in (*self.weights, *self.biases)]
        losses, correct = self.losses.double().clone(), self.correct.clone()
        for trial in range(self.trials):
            order, column = int(self.order_of[trial]), int(self.column_of[trial])
            own = [value[trial].clone().requires_grad_() for value in weights]
            for batch in range(self.batches):
                rows = self.rows[batch, order]
                x = self.features[rows].double() / (255 if self.shape.whole_bytes else 1)
                for layer in range(layers):
                    x = F.linear(x, own[layer], own[layers + layer])
                    x = activate(x) if layer + 1 < layers else x
                loss = F.cross_entropy(x, self.labels[rows], label_smoothing=self.shape.smoothing)
                losses[batch, column] = loss.detach()
                correct[batch, column] = (x.argmax(1) == self.labels[rows]).sum()
                gradients = torch.autograd.grad(loss, own)
                with torch.no_grad():
                    for value, gradient in zip(own, gradients, strict=True):
                        value.sub_(self.rates[batch, column] * gradient)
            for value, trained in zip(weights, own, strict=True):
                value[trial] = trained.detach()
        return [*weights, losses, correct]


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("shape", [*SHAPES, *map(drawn, range(12))], ids=str)
def test_a_simulated_block_is_that_of_autograd(shape: Shape) -> None:
    for size in {shape.rows, max(1, shape.rows - 3)}:  # the last batch of an epoch is smaller
        case = Case(shape, seed=size, size=size)
        expected = case.by_autograd()
        *found, correct = case.trained()
        *values, right = expected
        for value, other in zip(found, values, strict=True):
            torch.testing.assert_close(value.double(), other, atol=3e-5, rtol=3e-5)
        assert correct.equal(right)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_no_warp_depends_on_another_of_its_phase(shape: Shape) -> None:
    """In the other order, the bits are the same. A missing barrier would make a difference."""
    usual, other = Case(shape, seed=0).trained(), Case(shape, seed=0).trained("-DREVERSED")
    assert all(a.equal(b) for a, b in zip(usual, other, strict=True))


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("shape", [*SHAPES, *map(drawn, range(4))], ids=str)
def test_half_of_the_warps_find_the_same(shape: Shape) -> None:
    """Bit for bit: the number depends on how many trials there are."""
    usual, other = Case(shape, seed=0).trained(), Case(replace(shape, warps=8), seed=0).trained()
    assert all(a.equal(b) for a, b in zip(usual, other, strict=True))


@needs_compiler
@pytest.mark.parametrize("shape", [SHAPES[2], *filter(lambda s: s.whole_bytes, SHAPES)], ids=str)
def test_a_block_may_be_divided(shape: Shape) -> None:
    """The weights are kept as they are, so a resumed run has the same bits."""
    whole, parts = Case(shape, seed=1), Case(shape, seed=1)
    expected = whole.trained()
    rows, rates, count = parts.rows, parts.rates, parts.batches
    for batch in range(count):
        parts.rows, parts.rates = rows[batch : batch + 1], rates[batch : batch + 1]
        parts.batches = 1
        found = parts.trained()
    assert all(a.equal(b) for a, b in zip(found[:-2], expected[:-2], strict=True))


@needs_compiler
def test_a_trial_that_diverges_is_no_number() -> None:
    case = Case(SHAPES[1], seed=0, batches=4)
    case.rates[1, case.column_of[0]] = 1e38
    found = case.trained()
    assert found[0][0].isnan().any()
    assert all(value[1].isfinite().all() for value in found[: 2 * case.shape.layers])


@needs_compiler
@pytest.mark.parametrize(("weight", "sound"), [(255.0, True), (257.0, False)])
def test_weights_of_bytes_have_a_limit(weight: float, sound: bool) -> None:
    """The limit that the documentation names; only the trial with such a weight is lost."""
    case = Case(TUTORIAL, seed=0, batches=1)
    case.weights[0][0, 3, 5] = weight
    *_, losses, _ = case.trained()
    assert losses[0, case.column_of[0]].isfinite() == sound
    assert losses[0, case.column_of[1]].isfinite()


@needs_compiler
@pytest.mark.parametrize("shape", [SHAPES[1], TUTORIAL], ids=str)
def test_of_equal_logits_the_first_class_is_predicted(shape: Shape) -> None:
    """The first class of all, and the first of those that share the largest logit."""
    for first in (0, 1):
        case = Case(shape, seed=0, batches=1)
        case.weights[-1].zero_()
        case.biases[-1].fill_(1)
        case.biases[-1][:, :first] = 0
        case.labels.fill_(first)
        *_, correct = case.trained()
        assert (correct == case.size).all()


@needs_compiler
@pytest.mark.parametrize("layer", [0, -1])
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_a_weight_that_is_no_number_spreads_as_in_autograd(shape: Shape, layer: int) -> None:
    """From a hidden unit to all logits, and from a logit to the class that counts as predicted."""
    case = Case(shape, seed=3, trials=1, batches=1)
    weights = case.weights[layer]
    weights[0, weights.shape[1] // 2] = math.nan
    *_, expected = case.by_autograd()
    *_, losses, correct = case.trained()
    assert losses.isnan().all()
    assert correct.equal(expected)


@needs_compiler
@pytest.mark.parametrize("shape", [*SHAPES, *map(drawn, range(12))], ids=str)
def test_its_memory_is_as_large_as_python_says(shape: Shape) -> None:
    """Exactly: the last floats are those of the losses and the correct predictions."""
    floats = built(shape).floats
    assert 4 * floats() == shape.shared_bytes


# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": the most shared
# memory of a thread block. 8.6, 8.9 and 12.0; 8.0; 9.0 and 10.0
CARDS = (99 * 1024, 163 * 1024, 227 * 1024)


def test_what_fits_a_card_is_what_the_documentation_says() -> None:
    text = (Path(__file__).parents[2] / "docs" / "devices.md").read_text()
    rows = re.findall(r"^\| ([\d-]+) \| ([\d,]+) \|(.+)\|$", text, re.MULTILINE)
    assert len(rows) == 8
    for network, given, batches in rows:
        units = tuple(map(int, network.split("-")))
        fitting = [
            max(
                (b for b in range(1, 1200) if replace(TUTORIAL, units=units, rows=b).shared_bytes
                 <= card),
                default="none",
            )
            for card in CARDS
        ]  # fmt: skip
        assert [str(batch) for batch in fitting] == batches.replace(" ", "").split("|"), network
        assert int(given.replace(",", "")) == replace(TUTORIAL, units=units).shared_bytes
    assert CARDS[0] < TUTORIAL.shared_bytes < CARDS[1]


def short(values: np.ndarray) -> np.ndarray:
    """The part that TF32 holds, as the kernel cuts it."""
    cut_bits = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)
    found: np.ndarray = cut_bits.view(np.float32).astype(float)
    return found


def cut(values: np.ndarray, unit: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.trunc(values / unit) * unit
    return found


def tensor_core(total: np.ndarray, terms: np.ndarray) -> np.ndarray:
    """total (n) + the sum of terms (n, 16), eight at a time: all are cut to the place of the
    largest one's 26th bit, and their sum to 24 bits (Fasi et al. 2021, float16 on an A100)."""
    for eight in np.split(terms, 2, axis=1):
        all_nine = np.column_stack([total, eight])
        unit = np.ldexp(1.0, np.frexp(np.abs(all_nine).max(1))[1] - 26)
        total = cut(all_nine, unit[:, None]).sum(1)
        total = cut(total, np.ldexp(1.0, np.frexp(total)[1] - 24))
    return total


def test_its_errors_are_those_that_the_documentation_has() -> None:
    text = (Path(__file__).parents[2] / "docs" / "devices.md").read_text()
    draw = np.random.default_rng(0)
    a, b = draw.uniform(1, 2, (2, 100_000)).astype(np.float32)
    upper_a, upper_b = short(a), short(b)
    product = upper_a * upper_b + upper_a * short(b - upper_b) + short(a - upper_a) * upper_b
    exact = a.astype(float) * b
    of_product = [np.abs(found / exact - 1).max() for found in (product, (a * b).astype(float))]

    pictures = draw.integers(0, 256, (2000, 784)) * (draw.random((2000, 784)) < 0.2).astype(float)
    weights = draw.uniform(-1 / 28, 1 / 28, (2000, 784)).astype(np.float32)
    terms = pictures * weights
    upper = (256 * weights).astype(np.float16).astype(float)
    lower = (256 * weights - upper).astype(np.float16).astype(float)
    large = np.abs(weights) > 2e-3
    assert np.abs((upper + lower) / 256 / weights - 1)[large].max() < 2**-23
    halves, by_float32 = [], np.zeros(2000, np.float32)
    for part in (np.arange(384), np.arange(384, 784)):
        total = np.zeros(2000)
        for few in np.split(part, len(part) // 16):
            for half in (lower, upper):
                total = tensor_core(total, pictures[:, few] * half[:, few])
        halves.append(total.astype(np.float32))
    by_kernel = (halves[0] + halves[1]).astype(float) / 256
    for column in range(784):
        by_float32 = (by_float32 + terms[:, column]).astype(np.float32)
    errors = [
        (found - terms.sum(1)) / np.abs(terms).sum(1) * np.sign(terms.sum(1))
        for found in (by_kernel, by_float32.astype(float))
    ]
    told = [[float(x) for x in re.findall(r"\d\.\de-\d", line)] for line in text.splitlines()]
    told = [figures for figures in told if figures]
    of_sum = [float(np.sqrt((each**2).mean())) for each in errors]
    assert told[0] == pytest.approx(of_product, rel=0.1)
    assert told[1] == pytest.approx(of_sum, rel=0.1)
    assert told[2] == [pytest.approx(-errors[0].mean(), rel=0.1)]
    assert abs(errors[1].mean()) < 2e-9


@pytest.mark.slow
@needs_nvrtc
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_120"])
def test_it_is_compiled_without_a_gpu(architecture: str) -> None:
    binary = compile_kernel(TUTORIAL, architecture)
    assert binary.startswith(b"\x7fELF")
    assert b"train" in binary


def ptx(shape: Shape, architecture: str) -> str:
    """The kernel in the language before that of a GPU, by NVRTC alone."""
    from cuda.bindings import nvrtc

    def checked(result: tuple[Any, ...]) -> Any:
        assert result[0] == nvrtc.nvrtcResult.NVRTC_SUCCESS
        return result[-1]

    options = [*shape.definitions(), f"--gpu-architecture={architecture}", "--diag-suppress=177"]
    program = checked(nvrtc.nvrtcCreateProgram(kernel.SOURCE.read_bytes(), b"kernel.cu", 0, [], []))
    checked(nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options]))
    text: bytes = b" " * checked(nvrtc.nvrtcGetPTXSize(program))
    checked(nvrtc.nvrtcGetPTX(program, text))
    return text.rstrip(b" \0").decode()


@pytest.mark.slow
@needs_nvrtc
@pytest.mark.parametrize(
    ("shape", "architecture"),
    [(TUTORIAL, "compute_80"), (TUTORIAL, "compute_120"), (SHAPES[2], "compute_80")],
    ids=str,
)
def test_no_instruction_of_it_is_slow(shape: Shape, architecture: str) -> None:
    """A GPU converts 64-bit integers to floats 4 to 32 times as slowly as others, and divides
    integers by some twenty instructions. What is known to the compiler must not be divided by."""
    text = ptx(shape, architecture)
    assert "mma.sync.aligned.m16n8k8" in text
    assert re.findall(r"cvt\.rn\.f32\.[us]64|\b(?:div|rem)\.[usb]\d+", text) == []


@needs_nvrtc
def test_what_nvrtc_refuses_is_told() -> None:
    with pytest.raises(KernelError, match="NVRTC_ERROR_INVALID_OPTION: nvrtc: error"):
        compile_kernel(TUTORIAL, "sm_1")


@pytest.mark.slow
@needs_nvrtc
def test_a_binary_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = SHAPES[1]
    monkeypatch.setattr(kernel, "MOST_FILES", 2)
    binary = compiled(shape, "sm_90", tmp_path)
    (file,) = tmp_path.iterdir()
    assert file.read_bytes() == binary
    file.write_bytes(b"kept")
    assert compiled(shape, "sm_90", tmp_path) == b"kept"
    assert compiled(shape, "sm_80", tmp_path) != b"kept"
    compiled(SHAPES[4], "sm_90", tmp_path)
    assert len([*tmp_path.iterdir()]) == 2
    assert not file.exists()
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert compiled(shape, "sm_90", blocked).startswith(b"\x7fELF")
