"""The engine against autograd, and against itself."""

import itertools
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, Optimizer

from kindling.native import compiler, engine
from tests.helpers.engine_cases import Array, Case, draw, results, vector_of, weight_of
from tests.helpers.philox import mask, normal_numbers, philox

pytestmark = pytest.mark.skipif(bool(engine.why_absent()), reason=engine.why_absent() or "present")
CASES = 200


class Perceptron(nn.Module):
    """The model of a case by torch, in float64. Masks and noise are functions of the Philox
    generator."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case, shape = case, case.network
        pairs = list(itertools.pairwise(shape.widths))
        batch = shape.norm == "batch"
        self.linear = nn.ModuleList(
            nn.Linear(a, b, bias=not (batch and n + 1 < len(pairs)))
            for n, (a, b) in enumerate(pairs)
        )
        kind = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm, None: nn.Identity}[shape.norm]
        self.norm = nn.ModuleList(kind(width) for width in shape.widths[1:-1])
        self.activation = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}[shape.activation]()
        self.double()

    def forward(self, x: Tensor, batch: int | None = None) -> Tensor:
        """`batch` is the number of a training batch in the run; None: no dropout, no noise."""
        shape = self.case.network
        x = self._dropped(self._noisy(x, batch, 0), shape.input_dropout, batch, 0)
        *hidden, last = self.linear
        for number, (linear, norm) in enumerate(zip(hidden, self.norm, strict=True), 1):
            x = linear(x)
            if shape.norm is None:
                x = self._noisy(x, batch, number)
            else:  # the noise of the normalised values is scaled with them
                weight: Any = norm.weight
                x = norm(x) + weight * self._noisy(torch.zeros_like(x), batch, number)
            x = self._dropped(self.activation(x), shape.dropouts[number - 1], batch, number)
        return self._noisy(last(x), batch, len(self.linear))

    def _noisy(self, x: Tensor, batch: int | None, layer: int) -> Tensor:
        deviation = self.case.network.noise
        if batch is None or not deviation:
            return x
        return x + deviation * normal_numbers(x.shape, self.case.seed, batch, layer)

    def _dropped(self, x: Tensor, probability: float, batch: int | None, layer: int) -> Tensor:
        if batch is None or not probability:
            return x
        return x * mask(x.shape, probability, self.case.seed, batch, layer)

    def pairs(self, vector: Array) -> Iterator[tuple[Array, Tensor]]:
        """The parts of a flat vector with the tensors of this model."""
        for number, place in enumerate(self.case.network.layers):
            linear: Any = self.linear[number]
            norm: Any = self.norm[number] if number < len(self.norm) else nn.Identity()
            yield weight_of(place, vector).T, linear.weight
            for name, tensor in (
                ("bias", linear.bias), ("scale", getattr(norm, "weight", None)),
                ("shift", getattr(norm, "bias", None)),
                ("mean", getattr(norm, "running_mean", None)),
                ("variance", getattr(norm, "running_var", None)),
            ):  # fmt: skip
                found = vector_of(place, name, vector)
                assert (found is None) == (tensor is None), name
                if found is not None and tensor is not None:
                    yield found, tensor


def test_the_generator_gives_the_words_of_its_authors() -> None:
    """Known answers of the library Random123."""
    assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 0xFFFFFFFF
    assert philox([ones] * 4, [ones] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def _optimizer(case: Case, model: nn.Module) -> Optimizer:
    own, parameters = case.optimizer, model.parameters()
    if engine.OPTIMIZERS[own.kind] == "sgd":
        return SGD(
            parameters,
            1.0,
            own.momentum,
            weight_decay=own.weight_decay,
            nesterov=bool(own.nesterov),
        )
    adam = Adam if engine.OPTIMIZERS[own.kind] == "adam" else AdamW
    return adam(parameters, 1.0, weight_decay=own.weight_decay)


def inputs_of(case: Case) -> Tensor:
    """The features in float64; bytes are scaled in float32, as by torchvision's ToTensor."""
    features = torch.from_numpy(case.features).float()
    return (features / 255 if case.source == engine.BYTES else features).double()


def sample_weights(case: Case, rows: Tensor) -> Tensor:
    if case.sample_weights is None:
        return torch.ones(len(rows)).double()
    return torch.from_numpy(case.sample_weights)[rows].double()


def loss_by_torch(case: Case, outputs: Tensor, rows: Tensor, *, training: bool) -> Tensor:
    """The weighted mean over samples; 0 if no sample has a weight."""
    labels, own = torch.from_numpy(case.labels)[rows], sample_weights(case, rows)
    of_class = torch.ones(len(rows)).double()
    match case.network.loss:
        case "squared_error":
            losses = F.mse_loss(outputs, labels.double(), reduction="none").mean(1)
        case "huber":
            delta = case.network.delta
            losses = F.huber_loss(outputs, labels.double(), reduction="none", delta=delta).mean(1)
        case "quantile":
            low = case.network.delta
            quantiles = torch.tensor([low, 0.5, 1 - low], dtype=torch.float64)
            errors = labels.double()[:, :, None] - outputs.view(len(outputs), -1, 3)
            losses = torch.maximum(quantiles * errors, (quantiles - 1) * errors).mean((1, 2))
        case "binary_cross_entropy":
            of_label = F.binary_cross_entropy_with_logits
            losses = of_label(outputs, labels.double(), reduction="none").mean(1)
        case _:
            weights = None
            if training and case.class_weights is not None:
                weights = torch.from_numpy(case.class_weights)
                of_class = weights[labels]
            smoothing = case.plan.smoothing if training else 0.0
            losses = F.cross_entropy(
                outputs, labels, weights, label_smoothing=smoothing, reduction="none"
            )
    total = (own * of_class).sum()
    return (own * losses).sum() / (total if total else 1)


def score_by_torch(case: Case, outputs: Tensor, rows: Tensor, *, training: bool) -> float:
    """Correct classes or labels, or the sum of the squared errors, of weighted samples. In
    training, the weights of a batch have the mean 1."""
    labels, own = torch.from_numpy(case.labels)[rows], sample_weights(case, rows)
    if training and own.any():
        own = own / own.mean()
    match case.network.loss:
        case "cross_entropy":
            found = (outputs.argmax(1) == labels).double()
        case "binary_cross_entropy":
            found = ((outputs > 0) == (labels == 1)).sum(1).double()
        case "quantile":
            found = (outputs[:, 1::3] - labels.double()).square().sum(1)
        case _:
            found = F.mse_loss(outputs, labels.double(), reduction="none").sum(1)
    return (own * found).sum().item()


def train_by_torch(
    case: Case, model: Perceptron, average: Perceptron
) -> tuple[list[float], list[float]]:
    """The steps of a case by autograd: losses and scores of the batches."""
    optimizer, plan = _optimizer(case, model), case.plan
    features = inputs_of(case)
    losses, scores, step = [], [], 0
    for k, rows in enumerate(torch.from_numpy(case.rows)):
        logits = model(features[rows], 3 * len(case.rows) + k)
        loss = loss_by_torch(case, logits, rows, training=True)
        if k % plan.accumulate == 0:
            optimizer.zero_grad()
        (loss / plan.accumulate).backward()
        losses.append(loss.item())
        scores.append(score_by_torch(case, logits, rows, training=True))
        if (k + 1) % plan.accumulate and k + 1 < len(case.rows):
            continue
        if plan.clip:
            nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
        optimizer.param_groups[0]["lr"] = case.rates[k]
        optimizer.step()
        bound = case.network.max_norm
        hidden: list[Any] = list(model.linear)[:-1] if bound else []
        for linear in hidden:
            norms = linear.weight.data.norm(dim=1, keepdim=True)
            linear.weight.data *= bound / norms.clamp(min=bound)
        taken = 3 * -(-len(case.rows) // plan.accumulate) + step
        rest = 1 - min(plan.ema_decay, (1 + taken) / (10 + taken))
        for mean, value in zip(
            average.state_dict().values(), model.state_dict().values(), strict=True
        ):
            if plan.ema_decay and mean.is_floating_point():
                mean.lerp_(value, rest)
        step += 1
    return losses, scores


def _ill_conditioned(case: Case) -> bool:
    """Adam divides a gradient by its size: of one that is zero but for rounding, rounding decides.
    A norm of one unit, or of a batch of two, leaves such gradients."""
    shape = case.network
    return case.optimizer.kind > 0 and shape.norm is not None


@pytest.mark.parametrize("number", range(CASES))
def test_a_block_equals_autograd(number: int) -> None:
    case = draw(number, bits=64)
    model, average = Perceptron(case), Perceptron(case)
    for each in (model, average):
        for values, tensor in each.pairs(case.weights):
            tensor.data.copy_(torch.from_numpy(values.copy()))
    expected_losses, expected_scores = train_by_torch(case, model, average)
    losses, scores = case.train(engine.engine())
    tolerance = 1e-5 if _ill_conditioned(case) else 1e-9
    assert np.allclose(losses, expected_losses, tolerance, tolerance)
    assert np.allclose(scores, expected_scores, tolerance, tolerance)
    for vector, other in ((case.weights, model), (case.average, average)):
        for values, tensor in other.pairs(vector):
            assert np.allclose(values, tensor.detach().numpy(), tolerance, tolerance)
    for place in case.network.layers:
        whole = case.weights[place.weight : place.weight + place.inputs * place.stride]
        assert not whole.reshape(place.inputs, place.stride)[:, place.units :].any()

    loss, score, logits = case.evaluate(engine.engine())
    with torch.no_grad():
        expected = model.eval()(inputs_of(case))
    everything = torch.arange(len(expected))
    assert np.allclose(logits, expected.numpy(), 10 * tolerance, 10 * tolerance)
    total = loss_by_torch(case, expected, everything, training=False).item()
    total *= sample_weights(case, everything).sum().item()
    assert loss == pytest.approx(total, rel=10 * tolerance)
    assert score == pytest.approx(
        score_by_torch(case, expected, everything, training=False), rel=10 * tolerance
    )


@pytest.mark.parametrize("number", range(40))
def test_single_precision_is_near_double(number: int) -> None:
    single, double = draw(number, bits=32), draw(number, bits=64)
    losses, _ = single.train(engine.engine())
    expected, _ = double.train(engine.engine())
    assert np.allclose(losses, expected, 1e-3, 1e-3)


@pytest.mark.parametrize("threads", [2, 3, 8])
@pytest.mark.parametrize("number", range(60))
def test_a_team_of_threads_gives_the_same_bits(number: int, threads: int) -> None:
    alone = results(draw(number), engine.engine())
    assert results(draw(number), engine.engine(), threads=threads) == alone


@pytest.mark.parametrize("number", range(60))
def test_blocks_of_any_size_give_the_same_bits(number: int) -> None:
    """A gradient that is not complete lives on in the model's vector, here in the next block."""
    whole = results(draw(number), engine.engine())
    accumulate = draw(number).plan.accumulate
    assert results(draw(number), engine.engine(), blocks=accumulate) == whole


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("number", range(60))
def test_steps_of_some_rows_at_once_are_those_of_whole_gradients(number: int, threads: int) -> None:
    """A bound that no gradient meets makes the engine store them."""
    found = list[bytes]()
    for bound in (0.0, 1e30):
        given = draw(number)
        given.plan.accumulate, given.plan.clip, given.stores_gradient = 1, bound, True
        found.append(results(given, engine.engine(), threads=threads))
    assert found[0] == found[1]


@pytest.mark.parametrize("bits", [32, 64])
def test_means_of_gradients_that_have_become_0_stay_normal(bits: int) -> None:
    """Processors are slow with smaller numbers. A feature is 0 except in the first batch; 0.9 to
    the power of so many steps is less than all normal numbers."""
    case = next(
        each
        for each in (draw(number, bits=bits, random_numbers=False) for number in range(1000))
        if each.optimizer.kind > 0 and each.network.widths[0] > 1 and not each.network.max_norm
        and each.features.dtype == np.float32 and not each.optimizer.weight_decay
    )  # fmt: skip
    steps, batch = (1200, 9000)[bits == 64], case.rows.shape[1]
    case.features[1:, 0] = 0
    case.rows = np.random.default_rng(0).integers(1, len(case.features), (steps, batch))
    case.rows[0] = 0
    case.rates = np.full(steps, 1e-4)
    case.plan.batches_per_epoch, case.plan.accumulate = steps, 1
    case.train(engine.engine())
    assert case.first is not None
    means = np.abs(weight_of(case.network.layers[0], case.first))
    least = np.finfo(means.dtype).tiny
    assert (means[1:] > 1e6 * least).any()
    assert (means[0] < 100 * least).all()
    assert not ((means > 0) & (means < least)).any()


def _exchanges(ranks: int, size: int, ended: int = 0) -> tuple[list[engine.Exchange], list[Array]]:
    """One for each of so many processes, and the arrays that they share."""
    slots, written = np.zeros(2 * ranks * size), np.zeros((ranks, 8), np.int64)
    flag = np.array([ended], np.int32)
    places = (slots.ctypes.data, written.ctypes.data, flag.ctypes.data)
    return [engine.Exchange(ranks, rank, *places, 0, 0) for rank in range(ranks)], [
        slots, written, flag,
    ]  # fmt: skip


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("number", range(60))
def test_processes_that_share_memory_train_one_model(number: int, threads: int) -> None:
    """Each has every second or third sample of a batch. All get the same bits, and those of one
    process up to rounding, unless each divides by the weights of its own samples or has a batch
    norm of its own."""
    ranks, by = 2 + number % 2, engine.engine()
    whole = draw(number, bits=64)
    batch = whole.rows.shape[1]
    rows = whole.rows[:, [n % batch for n in range(-(-batch // ranks) * ranks)]]
    whole.rows = np.ascontiguousarray(rows)
    parts = [draw(number, bits=64) for _ in range(ranks)]
    exchanges, kept = _exchanges(ranks, whole.network.size)
    for rank, part in enumerate(parts):
        part.rows = np.ascontiguousarray(rows[:, rank::ranks])
    with ThreadPoolExecutor(ranks) as pool:
        jobs = [
            pool.submit(part.train, by, 1 + number % 3, threads, exchange)
            for part, exchange in zip(parts, exchanges, strict=True)
        ]
        losses = [job.result()[0] for job in jobs]
    for part in parts[1:]:
        for values, others in zip(trained(part), trained(parts[0]), strict=True):
            assert np.array_equal(values, others, equal_nan=True)
    assert [exchange.round for exchange in exchanges] == [int(kept[1][0, 0])] * ranks
    weighted = whole.class_weights is not None or whole.sample_weights is not None
    if not weighted and whole.network.norm != "batch":
        expected, _ = whole.train(by)
        tolerance = 1e-5 if _ill_conditioned(whole) else 1e-9
        assert np.allclose(np.mean(losses, 0), expected, tolerance, tolerance)
        assert np.allclose(parts[0].weights, whole.weights, tolerance, tolerance)
        assert np.allclose(parts[0].average, whole.average, tolerance, tolerance)


def trained(case: Case) -> Iterator[Array]:
    """The weights and biases of a case, without the statistics of its norms."""
    for place in case.network.layers:
        yield weight_of(place, case.weights)
        for name in ("bias", "scale", "shift"):
            vector = vector_of(place, name, case.weights)
            if vector is not None:
                yield vector


def test_a_process_does_not_wait_for_one_that_has_ended() -> None:
    """It waits while the other lives, even long."""
    case, by = draw(1, bits=64), engine.engine()
    exchanges, kept = _exchanges(2, case.network.size)
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(case.train, by, 0, 1, exchanges[0])
        try:
            with pytest.raises(TimeoutError):
                job.result(0.3)
            kept[2][0] = 1
            with pytest.raises(ConnectionError, match="closed by peer"):
                job.result(60)
        finally:
            kept[1][1, 0] = 10**9  # an engine that waits on is let go


def _gelu(x: float) -> float:
    return x * math.erfc(-x / math.sqrt(2)) / 2


def test_the_functions_are_as_exact_as_their_type() -> None:
    """Logits of a network without weights but its last: the activations themselves."""
    for bits, bound in ((32, 4e-6), (64, 2e-14)):
        for name, exact in (("tanh", math.tanh), ("gelu", _gelu)):
            network = engine.Network((1, 1, 2), bits, name)
            weights = np.zeros(network.size, np.float32 if bits == 32 else np.float64)
            weight_of(network.layers[0], weights)[0, 0] = 1
            weight_of(network.layers[1], weights)[0, 0] = 1
            x = np.concatenate([np.linspace(-12, 12, 4001), np.geomspace(1e-30, 1, 500)])
            x = x.astype(np.float32)
            out = np.empty((len(x), 2), weights.dtype)
            by = engine.engine()
            scratch = np.empty(by.scratch_bytes(network, len(x)), np.uint8)
            samples = engine.SamplesStruct(x.ctypes.data, engine.FLOATS, None, None, len(x))
            by.logits(network, weights.ctypes.data, samples, out.ctypes.data, scratch.ctypes.data)
            expected = np.array([exact(float(value)) for value in x])
            error = np.abs(out[:, 0] - expected) / np.maximum(np.abs(expected), 1e-20)
            assert error.max() < bound, (name, bits)


@pytest.mark.parametrize("number", range(8))
def test_the_first_of_equal_logits_is_predicted(number: int) -> None:
    """As by torch.argmax. All logits are zero here."""
    case = draw(number, random_numbers=False, loss="cross_entropy")
    case.weights[:], case.rates[:] = 0, 0
    case.plan.class_weights = case.sample_weights = None
    losses, scores = case.train(engine.engine())
    assert scores.tolist() == (case.labels[case.rows] == 0).sum(1).tolist()
    assert losses == pytest.approx(math.log(case.network.widths[-1]), rel=1e-6)
    assert case.evaluate(engine.engine())[1] == (case.labels == 0).sum()


def test_a_nan_shows_in_every_later_loss() -> None:
    """Comparisons with NaN are false, and the bits of NaN are those of a number: each function of
    the engine must pass NaN on."""
    for number in range(40):
        case = draw(number, random_numbers=False)
        weight_of(case.network.layers[number % len(case.network.layers)], case.weights)[0, 0] = (
            np.nan
        )
        losses, _ = case.train(engine.engine())
        assert np.isnan(losses).all(), number
        assert np.isnan(case.evaluate(engine.engine())[0])


def test_structures_of_other_sizes_are_refused() -> None:
    class Library:
        @staticmethod
        def sizes(found: list[int]) -> None:
            found[0] = 1

    with pytest.raises(OSError, match="its structures have sizes"):
        engine.Engine(Library())  # type: ignore[arg-type]


def test_the_state_names_the_instruction_set() -> None:
    assert engine.state() == {"instruction_set": compiler.levels()[0], "reason": None}
