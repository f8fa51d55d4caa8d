"""Groups S models into segments, whose models share matrix products, and segments into lanes, which
train at the same time. A single run is a stack of one model.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kindling.config.schema import OLD_TASK
from kindling.models import count_parameters
from kindling.models.closed_form import ClosedForm, closed_form_of
from kindling.system.machine import to_device
from kindling.tasks.task import Task, build_task

# If a lane has more different shapes than this, widths are rounded up to multiples of ROUNDING, so
# that models of similar width share a segment.
MOST_EXACT_SHAPES = 8
ROUNDING = 16


class Lane:
    """Some segments of a stack. No other lane touches their tensors."""

    def __init__(self, number: int, segments: Sequence[ClosedForm], first: int) -> None:
        """`first` is the number of the first segment in the stack."""
        self.number, self.segments = number, segments
        self.segment_numbers = range(first, first + len(segments))
        self.trials = [trial for segment in segments for trial in segment.trials]

    @property
    def tensors_to_average(self) -> list[Tensor]:
        """The tensors that a moving average follows: parameters, running means and variances."""
        return [t for segment in self.segments for t in (*segment.parameters, *segment.statistics)]

    def logits(self, features: Tensor) -> Tensor:
        """Features (N, *shape) to logits (trials, classes, N), in the order of `self.trials`."""
        logits = [segment.forward(features) for segment in self.segments]
        return logits[0] if len(logits) == 1 else torch.cat(logits)


class Stack:
    """S models that train together, on R distinct batches.

    Models of equal shape form a segment. In a segment, the first layers of all models that train on
    the same batch are computed as one matrix product. The segments are divided among `lanes`, which
    have about equal arithmetic and may train at the same time.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        batch_of: Sequence[int],
        max_lanes: int = 1,
        kind: type[ClosedForm] | None = None,
        task: Task | None = None,
    ) -> None:
        """`batch_of[s]` is the number of the batch that trial s trains on. The models' parameters
        become views of the stack's tensors. `kind` is the class of the segments, by default the
        closed form of the models. The `task` is by default the classification by cross entropy."""
        self.models, self.trial_count = list(models), len(models)
        self.batch_of, self.batch_count = batch_of, max(batch_of) + 1
        kind = kind or closed_form_of(models[0])
        assert kind is not None
        self.kind = kind
        self.lanes: list[Lane] = []
        self.segments: list[ClosedForm] = []
        for number, lane in enumerate(self._divide_trials(max_lanes)):
            segments = [
                kind(trials, [models[trial] for trial in trials], batches)
                for trials, batches in self._divide_lane(lane)
            ]
            self.lanes.append(Lane(number, segments, len(self.segments)))
            self.segments += segments
        for segment in self.segments:
            segment.task = task or build_task(OLD_TASK, segment.classes)
        self.parameters = [p for segment in self.segments for p in segment.parameters]
        self.changing = [  # what a step changes, besides the state of the optimizer
            tensor
            for each in self.segments
            for tensor in (*each.parameters, *each.statistics, *each.counts)
        ]
        order = [trial for lane in self.lanes for trial in lane.trials]
        self.trial_order = None  # indices that sort the results of the lanes by trial
        if order != list(range(self.trial_count)):
            self.trial_order = torch.tensor(order, device=self.parameters[0].device).argsort()

    def _divide_trials(self, count: int) -> list[Sequence[int]]:
        """The trials of each of `count` lanes. Lanes have about equal numbers of parameters. Most
        trials of equal shape and batch come into the same lane."""
        if count == 1:
            return [range(self.trial_count)]
        keys = [
            (self.kind.segment_key(model, 1), batch)
            for model, batch in zip(self.models, self.batch_of, strict=True)
        ]
        sizes = [count_parameters(model) for model in self.models]
        lanes: list[list[int]] = [[] for _ in range(count)]
        # Lays all trials end to end and cuts the line into `count` equal pieces. A trial belongs to
        # the piece in which its middle lies.
        start, length = 0, sum(sizes)
        for trial in sorted(range(self.trial_count), key=lambda t: keys[t]):
            lanes[int((start + sizes[trial] / 2) / length * count)].append(trial)
            start += sizes[trial]
        return [sorted(lane) for lane in lanes if lane]

    def _divide_lane(self, lane: Sequence[int]) -> list[tuple[list[int], list[int]]]:
        """Divides the trials of a lane into segments: (trials, batches) of each. In a segment,
        models have the same key, and each batch has the same number of trials."""
        exact = {self.kind.segment_key(self.models[trial], 1) for trial in lane}
        rounding = ROUNDING if len(exact) > MOST_EXACT_SHAPES else 1
        by_key: dict[Any, dict[int, list[int]]] = {}  # key → batch → trials
        for trial in lane:
            by_batch = by_key.setdefault(self.kind.segment_key(self.models[trial], rounding), {})
            by_batch.setdefault(self.batch_of[trial], []).append(trial)
        segments: dict[Any, tuple[list[int], list[int]]] = {}  # by key and trials per batch
        for key, by_batch in by_key.items():
            for batch, trials in by_batch.items():
                in_segment, batches = segments.setdefault((key, len(trials)), ([], []))
                in_segment += trials
                batches.append(batch)
        return [*segments.values()]

    def by_trial(self, results: Sequence[Tensor], dim: int) -> Tensor:
        """Joins the results of the lanes or segments along `dim`, in the order of the trials."""
        whole = results[0] if len(results) == 1 else torch.cat(list(results), dim)
        return whole if self.trial_order is None else whole.index_select(dim, self.trial_order)

    def count_batches(self, count: int) -> None:
        for segment in self.segments:
            segment.count_batches(count)

    def logits(self, features: Tensor) -> Tensor:
        """Evaluates all trials on the same features (N, *shape): logits (S, classes, N)."""
        return self.by_trial([lane.logits(features) for lane in self.lanes], 0)


class KeptWeights:
    """A second place for all tensors of the models of a stack. Copying the weights of any number of
    models takes two kernels for each tensor of a segment, instead of one for each model."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        """The models' tensors are views of the stack's, which fill their memory."""
        self.weights: list[dict[str, Tensor]] = []  # of each model, by the names in its state
        # By address: a flat tensor of the stack, the place for its copy, and its models, in order.
        flats: dict[int, tuple[Tensor, Tensor, list[tuple[int, int]]]] = {}
        for number, model in enumerate(models):
            own = {}
            for name, tensor in model.state_dict(keep_vars=True).items():
                value = tensor.detach()
                address = value.untyped_storage().data_ptr()
                if address not in flats:
                    flat = value.new_empty(0).set_(value.untyped_storage())
                    flats[address] = (flat, torch.zeros_like(flat), [])
                _, kept, inside = flats[address]
                inside.append((value.storage_offset(), number))
                own[name] = kept.as_strided(value.shape, value.stride(), value.storage_offset())
            self.weights.append(own)
        self.flats = [
            (flat, kept, [number for _, number in sorted(inside)])
            for flat, kept, inside in flats.values()
        ]

    @torch.no_grad()
    def copy(self, numbers: Sequence[int]) -> list[dict[str, Tensor]]:
        """Copies the tensors of the models with these numbers. The results are views of the copies,
        which the next copy of the same model overwrites."""
        wanted = set(numbers)
        for flat, kept, inside in self.flats:
            rows = [row for row, number in enumerate(inside) if number in wanted]
            index = to_device(torch.tensor(rows, dtype=torch.long), flat.device)
            source, target = (tensor.view(len(inside), -1) for tensor in (flat, kept))
            target.index_copy_(0, index, source.index_select(0, index))
        return [self.weights[number] for number in numbers]
