"""The engine trains models on a CPU (native/): their tensors are views of one flat vector.

The numbers of a trial depend on the trial alone: not on other trials, threads, or the division of
an epoch into blocks.
"""

import ctypes
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from kindling.config import schema
from kindling.data.loader import CHUNK, OPERATIONS, Batch, Block, BlockSampler, Rows, Slices
from kindling.data.sources.source import Split
from kindling.models.closed_form import closed_form_of
from kindling.models.mlp import DenseClosedForm, architecture_of
from kindling.native import engine
from kindling.steps.base import BatchResults, Learner, StepPlan, contiguous
from kindling.steps.lanes import TeamSize
from kindling.steps.optimizers import ADAM_BETAS, ADAM_EPS, build_optimizer, is_plain_sgd
from kindling.tasks.measures import Evaluated, joined, tally
from kindling.tasks.metrics import exact_sum
from kindling.tasks.task import Task

SOURCES = {
    torch.uint8: engine.BYTES, torch.float32: engine.FLOATS, torch.float64: engine.DOUBLES,
}  # fmt: skip

_memory = threading.local()


def scratch(size: int) -> int:
    """The address of at least `size` bytes of working memory for this thread."""
    held: Tensor | None = getattr(_memory, "held", None)
    if held is None or len(held) < size:
        held = _memory.held = torch.empty(size, dtype=torch.uint8)
    return held.data_ptr()


def as_read(part: Tensor) -> Tensor:
    """Labels or weights as the engine reads them: Lightning may have made float64 of numbers."""
    return (part.float() if part.is_floating_point() else part).contiguous()


def scores_of(scores: NDArray[np.float64], *, real: bool) -> Tensor:
    return torch.from_numpy(scores if real else scores.astype(np.int64))


class NativeModel:
    """A model and the flat vector `weights` that holds its parameters and running statistics."""

    def __init__(self, model: nn.Module, task: Task) -> None:
        assert task.native is not None
        self.model, self.architecture = model, architecture_of(model)
        known, norms = self.architecture, self.architecture.norms
        self.batch_norms = [norm for norm in norms if isinstance(norm, nn.BatchNorm1d)]
        norm = ("batch" if self.batch_norms else "layer") if norms else None
        eps = norms[0].eps if norms else 1e-5
        momentum = (self.batch_norms[0].momentum if self.batch_norms else None) or 0.1
        self.network = engine.Network(
            known.widths, torch.finfo(known.layers[0].weight.dtype).bits, known.activation, norm,
            known.dropouts, known.input_dropout, known.noise, known.max_norm, eps, momentum,
            *task.native,
        )  # fmt: skip
        self.weights = self.new_vector()
        for tensor, view in self._pairs(self.weights):
            tensor.data = view.copy_(tensor.data)

    def new_vector(self) -> Tensor:
        """A flat vector of zeros, with a place for each number of the model."""
        return torch.zeros(self.network.size, dtype=self.architecture.layers[0].weight.dtype)

    def views(self, vector: Tensor) -> list[Tensor]:
        """The parts of a flat vector that belong to the parameters, in the model's order."""
        by_parameter = {id(tensor): view for tensor, view in self._pairs(vector)}
        return [by_parameter[id(parameter)] for parameter in self.model.parameters()]

    def _pairs(self, vector: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Each tensor of the model, with its view of a flat vector."""
        norms = (*self.architecture.norms, None)
        for number, (layer, place) in enumerate(
            zip(self.architecture.layers, self.network.layers, strict=True)
        ):
            norm = norms[number] if self.architecture.norms else None
            whole = vector[place.weight : place.weight + place.inputs * place.stride]
            yield layer.weight, whole.view(place.inputs, place.stride)[:, : place.units].T
            for module, name, start in (
                (layer, "bias", place.bias), (norm, "weight", place.scale),
                (norm, "bias", place.shift), (norm, "running_mean", place.mean),
                (norm, "running_var", place.variance),
            ):  # fmt: skip
                if start >= 0:
                    yield getattr(module, name), vector[start : start + place.units]

    @property
    def counters(self) -> list[Tensor]:
        """Of the batches that the running statistics have seen."""
        found = [norm.num_batches_tracked for norm in self.batch_norms]
        return [counter for counter in found if counter is not None]

    def snapshot(self) -> list[Tensor]:
        """A copy of all numbers of the model."""
        return [self.weights.clone(), *(counter.clone() for counter in self.counters)]

    def restore(self, snapshot: Sequence[Tensor]) -> None:
        for own, copy in zip([self.weights, *self.counters], snapshot, strict=True):
            own.copy_(copy)

    def new_logits(self, samples: int) -> Tensor:
        return self.weights.new_empty(samples, self.network.widths[-1])

    def logits(self, features: Tensor, into: Tensor | None = None) -> Tensor:
        """Logits (N, classes) of features (N, *shape), as a split or a `Batch` holds them; `into`
        rows of `new_logits`, if given."""
        features, by = features.contiguous(), engine.engine()
        found = self.new_logits(len(features)) if into is None else into
        assert len(found) == len(features)
        if len(features):
            memory = scratch(by.scratch_bytes(self.network, len(features)))
            samples = self.samples(features)
            by.logits(self.network, self.weights.data_ptr(), samples, found.data_ptr(), memory)
        return found

    def samples(
        self, features: Tensor, labels: Tensor | None = None, weights: Tensor | None = None
    ) -> engine.SamplesStruct:
        """The addresses of features (N, *shape), labels (N, …) and weights (N,). Raises ValueError
        as `check`."""
        self.check(features, labels, weights)
        addresses = (None if part is None else part.data_ptr() for part in (labels, weights))
        source = SOURCES[features.dtype]
        return engine.SamplesStruct(features.data_ptr(), source, *addresses, len(features))

    def check(
        self, features: Tensor, labels: Tensor | None = None, weights: Tensor | None = None
    ) -> None:
        """Raises ValueError if a sample has another size than the model's inputs, if anything has
        another type or number of values than the engine reads, or the labels are not what its loss
        takes: the engine would read and write foreign memory."""
        inputs, *_, classes = self.network.widths
        if features.numel() != len(features) * inputs:
            raise ValueError(f"features {tuple(features.shape)}, must be (N, {inputs})")
        if features.dtype not in (torch.uint8, torch.float32, self.weights.dtype):
            raise ValueError(f"features of {features.dtype}, must be uint8 or float32")
        classify = self.network.loss == "cross_entropy"
        width, kind = (1, torch.int64) if classify else (self.network.targets, torch.float32)
        for name, part, each, dtype in (
            ("labels", labels, width, kind), ("weights", weights, 1, torch.float32)
        ):  # fmt: skip
            if part is None:
                continue
            if part.dtype != dtype or part.numel() != each * len(features):
                raise ValueError(
                    f"{name} {tuple(part.shape)} of {part.dtype}, must be {each * len(features)} "
                    f"values of {dtype}"
                )
        if classify and labels is not None and len(labels):
            low, high = (int(label) for label in labels.aminmax())
            if low < 0 or high >= classes:
                raise ValueError(f"labels from {low} to {high}, must be from 0 to {classes - 1}")


def why_not_native(model: nn.Module) -> str:
    """Why the engine cannot train a model on a CPU; "" if it can."""
    if closed_form_of(model) is not DenseClosedForm:
        return f"the engine does not know the layers of {type(model).__name__}"
    if (activation := architecture_of(model).activation) not in engine.ACTIVATIONS:
        return f"the engine has no model.activation={activation}"
    return engine.why_absent()


class NativeTrial:
    """One model with the vectors of its optimizer. The state of torch's optimizer is views of them,
    so that checkpoints and other kinds of steps can read it."""

    def __init__(self, model: NativeModel, config: schema.Optimizer, seed: int) -> None:
        self.model = model
        self.optimizer = build_optimizer(config, model.model.parameters())
        self.gradient: Tensor | None = None
        adam = config.name != "sgd"
        decay, momentum = config.weight_decay, getattr(config, "momentum", 0.0)
        names = ["exp_avg", "exp_avg_sq"] if adam else ["momentum_buffer"] * bool(momentum)
        self.moments = {name: model.new_vector() for name in names}
        self.count = torch.tensor(0.0) if adam else None  # of steps; torch keeps a float
        self.settings = engine.Optimizer(
            engine.OPTIMIZERS.index(config.name), getattr(config, "nesterov", False), decay,
            momentum, *ADAM_BETAS, ADAM_EPS,
        )  # fmt: skip
        vectors = [vector.data_ptr() for vector in self.moments.values()]
        self.pointers = engine.ModelStruct(
            model.weights.data_ptr(), None, *(*vectors, None, None)[:2], None, None, seed, 0
        )
        self.adopt()

    def store_gradients(self) -> None:
        self.gradient = self.model.new_vector()
        self.pointers.gradient = self.gradient.data_ptr()

    def exchange_gradients(self, plan: StepPlan) -> None:
        """With the other ranks of the run, after each step. All ranks call this together."""
        assert plan.shared_memory is not None
        numbers = 2 * plan.ranks * self.model.network.size
        slots = numbers * self.model.weights.element_size()
        self.shared = plan.shared_memory(slots + plan.ranks * engine.LINE)
        place = self.shared.address
        self.exchange = engine.Exchange(
            plan.ranks, self.shared.rank, place, place + slots, self.shared.ended, 0, 0
        )
        self.pointers.exchange = ctypes.addressof(self.exchange)

    def adopt(self) -> None:
        """Takes over the state that was loaded into torch's optimizer, and makes it views."""
        state: dict[Any, dict[str, Tensor]] = self.optimizer.state
        parameters = list(self.model.model.parameters())
        for name, vector in self.moments.items():
            for parameter, view in zip(parameters, self.model.views(vector), strict=True):
                if name in state[parameter]:
                    view.copy_(state[parameter][name])
                state[parameter][name] = view
        if self.count is not None:
            self.count = state[parameters[0]].get("step", self.count).detach().clone()
            self.pointers.steps = int(self.count)
            for parameter in parameters:
                state[parameter]["step"] = self.count

    def finish_block(self, rate: float) -> None:
        """Makes the optimizer's state that of the last step."""
        if self.count is not None:
            self.count.fill_(self.pointers.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate


class NativeLearner(Learner):
    """Trains trials by the engine: each on a thread of `lanes`, a single one on several."""

    @cached_property
    def native(self) -> list[NativeModel]:
        return [NativeModel(model, self.task) for model in self.models]

    @cached_property
    def trials(self) -> list[NativeTrial]:
        return [
            NativeTrial(model, config.optimizer, config.seed)
            for model, config in zip(self.native, self.configs, strict=True)
        ]

    @cached_property
    def optimizers(self) -> list[Optimizer]:
        return [trial.optimizer for trial in self.trials]

    def optimizers_restored(self) -> None:
        for trial in self.trials:
            trial.adopt()

    def begin(self, *arguments: Any) -> None:
        """The average has one lane, of each trial's flat vector."""
        super().begin(*arguments)
        trials, step_plan, average = self.trials, self.step_plan, self.average
        decay = 0.0
        if average is not None:
            decay = average.decay
            for trial, values in zip(trials, average.values[0], strict=True):
                trial.pointers.average = values.data_ptr()
        one = step_plan.accumulate == step_plan.ranks == 1 and step_plan.clip is None
        for trial in trials:
            if not (one and is_plain_sgd(trial.optimizer)):
                trial.store_gradients()
            if step_plan.ranks > 1:
                trial.exchange_gradients(step_plan)
        weights = step_plan.class_weights
        self.class_weights = None if weights is None else np.array(weights, np.float64)
        self.plan = engine.PlanStruct(
            step_plan.batches_per_epoch, step_plan.accumulate, step_plan.clip or 0.0,
            step_plan.smoothing, decay,
            None if self.class_weights is None else self.class_weights.ctypes.data,
        )  # fmt: skip
        self.team_size = TeamSize(self.lanes.count)
        self.teams = {size: engine.engine().team(size) for size in self.team_size.sizes}
        # The longest first, so that threads end at about the same time.
        sizes = [trial.model.network.size for trial in trials]
        self.by_size = sorted(range(len(trials)), key=lambda n: -sizes[n])

    def train(self, block: Block | Rows, epoch: int, batch: int) -> BatchResults:
        count = block.batches
        losses = np.empty((len(self.trials), count))
        scores = np.empty((len(self.trials), count))
        features, labels = block.features.contiguous(), as_read(block.labels)
        weights = None if block.weights is None else as_read(block.weights)
        first = 0 if isinstance(block, Rows) else 2  # the dimension of the samples
        self.trials[0].model.check(features.flatten(0, first), labels, weights)

        def train(number: int) -> None:
            trial, order = self.trials[number], self.batch_of[number]
            steps = (batch + np.arange(count)) // self.step_plan.accumulate
            rates = np.ascontiguousarray(self.schedules[number].of_epoch(epoch)[steps])
            if isinstance(block, Rows):
                x, y, w, rows = features, labels, weights, block.rows[:, order].contiguous()
                assert rows.dtype == torch.int64
            else:
                x, y, rows = features[:, order].contiguous(), labels[:, order].contiguous(), None
                w = None if weights is None else weights[:, order].contiguous()
            addresses = losses[number].ctypes.data, scores[number].ctypes.data
            part = engine.BlockStruct(
                x.data_ptr(), SOURCES[x.dtype], None if rows is None else rows.data_ptr(),
                y.data_ptr(), None if w is None else w.data_ptr(), block.size, epoch, batch,
                0, count, rates.ctypes.data, *addresses,
            )  # fmt: skip
            self.train_on(trial, part)
            trial.finish_block(float(rates[-1]))

        self.lanes.deal(train, self.by_size)
        real = self.task.real_scores or weights is not None
        return BatchResults(torch.from_numpy(losses).T, scores_of(scores, real=real).T)

    def train_on(self, trial: NativeTrial, part: engine.BlockStruct) -> None:
        """Trains a trial on all batches of a block: in this thread, a single trial in several."""
        network, by, count = trial.model.network, engine.engine(), part.end
        memory = scratch(by.scratch_bytes(network, part.batch))
        # Signals are handled between calls, even if trainer.steps_per_call is large.
        most = max(1, OPERATIONS // (6 * part.batch * network.size))
        arguments = (network, (trial.settings, self.plan), trial.pointers, part, memory)

        def run(threads: int, begin: int, end: int) -> None:
            for start in range(begin, end, most):
                part.begin, part.end = start, min(start + most, end)
                self.lanes.map(partial(by.train, *arguments), self.teams[threads])

        if len(self.trials) == 1 and self.lanes.pool is not None:
            self.team_size.train(run, count)
        else:
            run(1, 0, count)
        part.begin, part.end = 0, count
        for counter in trial.model.counters:
            counter.add_(count)

    def gradients(self) -> list[Tensor]:
        return [trial.gradient for trial in self.trials if trial.gradient is not None]

    def averaged_tensors(self) -> list[list[Tensor]]:
        return [[model.weights for model in self.native]]

    def evaluate(self, batch: Batch, places: Sequence[int]) -> Evaluated:
        models, measure, by = [self.native[n] for n in places], self.measure, engine.engine()
        features, labels = batch.features.contiguous(), as_read(batch.labels)
        weights = None if batch.weights is None else as_read(batch.weights)
        starts = range(0, len(labels), CHUNK)
        losses = np.empty((len(starts), len(models)))
        scores = np.empty((len(starts), len(models)))
        tallies = dict[tuple[int, int], Tensor]()

        def evaluate(part_of: tuple[int, int]) -> None:
            number, chunk = part_of
            model, part = models[number], slice(starts[chunk], starts[chunk] + CHUNK)
            own = None if weights is None else weights[part]
            samples = model.samples(features[part], labels[part], own)
            memory = scratch(by.scratch_bytes(model.network, samples.size))
            logits = model.weights.new_empty(samples.size if measure else 0, self.task.outputs)
            losses[chunk, number], scores[chunk, number] = by.evaluate(
                model.network, model.weights.data_ptr(), samples, memory,
                logits.data_ptr() if measure else None,
            )  # fmt: skip
            if measure:
                tallies[part_of] = tally(measure, self.task.central(logits.mT[None]), labels[part])

        numbers, chunks = range(len(models)), range(len(starts))
        self.lanes.deal(evaluate, [(number, chunk) for number in numbers for chunk in chunks])
        whole = None
        if measure:
            by_model = [joined(measure, [tallies[n, chunk] for chunk in chunks]) for n in numbers]
            whole = torch.cat(by_model, 1)
        real = self.task.real_scores or weights is not None
        return Evaluated(torch.from_numpy(losses), scores_of(scores, real=real), whole)

    def logits(self, features: Tensor) -> Tensor:
        return self.native[0].logits(features)

    def optimizer_state(self, place: int) -> dict[str, Any]:
        return self.without_views(self.optimizers[place].state_dict())  # type: ignore[no-any-return]

    def without_views(self, state: Any) -> Any:
        return tree_map_only(Tensor, contiguous, state)

    def load_optimizer_states(self, states: Sequence[dict[str, Any]]) -> None:
        super().load_optimizer_states(states)
        self.optimizers_restored()


class EpochSums(NamedTuple):
    """The sums of the losses over the samples of each batch or chunk, and that of the scores."""

    losses: list[float]
    score: float


class NativeEpochs:
    """Trains the one model of a learner, an epoch a call, on samples that stay where they are. The
    bits are those of blocks. All addresses are found once: by blocks, a fit of 150 samples takes
    twice as long, because what surrounds a call of the engine takes longer than the call."""

    def __init__(
        self, learner: NativeLearner, train: Split, sampler: BlockSampler, validation: Slices
    ) -> None:
        self.learner, (self.trial,) = learner, learner.trials
        self.model, self.by = self.trial.model, engine.engine()
        batches, each = sampler.batches, sampler.batch_size
        self.steps = np.arange(batches) // learner.step_plan.accumulate
        self.means, self.scores = np.empty(batches), np.empty(batches)
        full = sampler.full_batches
        self.sizes = [float(each)] * full + [float(sampler.last_batch)] * (batches - full)
        self.read = [(train.features.contiguous(), as_read(train.labels), _weights_of(train))]
        seen = self.model.samples(*self.read[0])
        self.parts: list[tuple[int, engine.BlockStruct]] = []  # and their first batches
        for first, size, count in ((0, each, full), (full, sampler.last_batch, 1)):
            if size * count:
                written = (a.ctypes.data + 8 * first for a in (self.means, self.scores))
                part = engine.BlockStruct(
                    seen.features, seen.source, None, seen.labels, seen.weights, size, 0, first,
                    0, count, None, *written,
                )  # fmt: skip
                self.parts.append((first, part))
        self.real = learner.task.real_scores or train.weights is not None
        self.chunks: list[engine.SamplesStruct] = []
        for batch in validation:
            features, labels = batch.features.contiguous(), as_read(batch.labels)
            weights = _weights_of(batch)
            self.read.append((features, labels, weights))
            for start in range(0, len(labels), CHUNK):
                of = slice(start, start + CHUNK)
                own = None if weights is None else weights[of]
                self.chunks.append(self.model.samples(features[of], labels[of], own))
        self.validation_losses, self.validation_scores = np.empty((2, len(self.chunks)))
        self.real_validation = learner.task.real_scores or validation.split.weights is not None

    def train(self, order: Tensor, epoch: int) -> EpochSums:
        """On the samples `order` (samples,) int64."""
        assert order.dtype == torch.int64
        rates = self.learner.schedules[0].of_epoch(epoch)[self.steps]
        for first, part in self.parts:
            part.rows = order.data_ptr() + 8 * first * self.parts[0][1].batch
            part.rates, part.epoch = rates.ctypes.data + 8 * first, epoch
            self.learner.train_on(self.trial, part)
        losses = [mean * size for mean, size in zip(self.means.tolist(), self.sizes, strict=True)]
        return EpochSums(losses, _total(self.scores, real=self.real))

    def validate(self) -> EpochSums:
        network, weights = self.model.network, self.model.weights.data_ptr()

        def evaluate(chunk: int) -> None:
            samples = self.chunks[chunk]
            memory = scratch(self.by.scratch_bytes(network, samples.size))
            found = self.by.evaluate(network, weights, samples, memory)
            self.validation_losses[chunk], self.validation_scores[chunk] = found

        self.learner.lanes.deal(evaluate, range(len(self.chunks)))
        total = _total(self.validation_scores, real=self.real_validation)
        return EpochSums(self.validation_losses.tolist(), total)


def _weights_of(part: Split | Batch) -> Tensor | None:
    return None if part.weights is None else as_read(part.weights)


def _total(scores: NDArray[np.float64], *, real: bool) -> float:
    return exact_sum(scores.tolist()) if real else int(scores.sum())
