"""S models as one network, trained in closed form: which models share a product, and which train
at the same time. A single run is a stack of one.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from src.config.closed_form import not_covered
from src.config.schema import Config
from src.models.closed_form import ClosedForm, closed_form_of

# The largest number of segments in a lane. Above it, widths are rounded up to multiples of
# ROUNDING, so that models of similar width share a segment.
MOST_SEGMENTS = 8
ROUNDING = 16


class Lane:
    """Some trials of a stack, in segments. No other lane touches their tensors."""

    def __init__(self, number: int, segments: Sequence[ClosedForm]) -> None:
        self.number, self.segments = number, segments
        self.trials = [trial for segment in segments for trial in segment.trials]

    @property
    def averaged(self) -> list[Tensor]:
        """The tensors that a moving average follows: parameters, running means and variances."""
        return [
            tensor
            for segment in self.segments
            for tensor in (*segment.parameters, *segment.statistics)
        ]

    def logits(self, features: Tensor) -> Tensor:
        """Features (N, *shape) to logits (trials, classes, N), in the order of the lane."""
        flat = features.flatten(1)
        parts = [segment.forward(flat) for segment in self.segments]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class Stack:
    """S models that train together, on R distinct batches.

    Models of equal shape form a segment. In a segment, the first layers of all models that train on
    the same batch are computed as one matrix product. The segments are divided among `lanes`, which
    have about equal arithmetic and may train at the same time.
    """

    def __init__(
        self, models: Sequence[nn.Module], batch_of: Sequence[int], lanes: int = 1
    ) -> None:
        """`batch_of[s]` is the number of the batch that trial s trains on, `lanes` the largest
        number of lanes. The models' parameters become views of the stack's tensors."""
        self.models, self.trials = list(models), len(models)
        self.batches = max(batch_of) + 1
        kind = closed_form_of(models[0])
        assert kind is not None
        self.lanes = []
        for number, own in enumerate(_lanes(kind, models, batch_of, lanes)):
            segments = [
                kind(trials, [models[trial] for trial in trials], batches)
                for trials, batches in _segments(kind, models, batch_of, own)
            ]
            self.lanes.append(Lane(number, segments))
        self.segments = [segment for lane in self.lanes for segment in lane.segments]
        self.parameters = [p for segment in self.segments for p in segment.parameters]
        self.statistics = [value for segment in self.segments for value in segment.statistics]
        order = [trial for lane in self.lanes for trial in lane.trials]
        self.trial_order = None  # indices that bring results of the lanes into order of trials
        if order != list(range(self.trials)):
            self.trial_order = torch.tensor(order, device=self.parameters[0].device).argsort()

    def by_trial(self, parts: Sequence[Tensor], dim: int) -> Tensor:
        """Joins the results of the lanes or segments along `dim`, in the order of the trials."""
        whole = parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)
        return whole if self.trial_order is None else whole.index_select(dim, self.trial_order)

    def count(self, batches: int) -> None:
        """Counts the batches of a block."""
        for segment in self.segments:
            segment.count(batches)

    def logits(self, features: Tensor) -> Tensor:
        """Features (N, *shape) that all trials share, to logits (S, classes, N)."""
        return self.by_trial([lane.logits(features) for lane in self.lanes], 0)


def step_kind(config: Config, model: nn.Module) -> str:
    """`closed_form` if the model has one and the configuration allows it, else `autograd`."""
    declined = config.trainer.step == "autograd" or not_covered(config)
    return "autograd" if declined or closed_form_of(model) is None else "closed_form"


def _lanes(
    kind: type[ClosedForm], models: Sequence[nn.Module], batch_of: Sequence[int], count: int
) -> list[Sequence[int]]:
    """The trials of each lane, about equal in parameters; equal shapes and batches together."""
    if count == 1:
        return [range(len(models))]
    costs = [sum(value.numel() for value in model.parameters()) for model in models]
    order = sorted(range(len(models)), key=lambda t: (kind.shape_of(models[t], 1), batch_of[t], t))
    lanes: list[list[int]] = [[] for _ in range(count)]
    before, whole = 0, sum(costs)
    for trial in order:
        lanes[int((before + costs[trial] / 2) / whole * count)].append(trial)
        before += costs[trial]
    return [sorted(lane) for lane in lanes if lane]


def _segments(
    kind: type[ClosedForm],
    models: Sequence[nn.Module],
    batch_of: Sequence[int],
    chosen: Sequence[int],
) -> list[tuple[list[int], list[int]]]:
    """(trials, batches) of each segment: of equal shapes, with equally many trials a batch."""
    exact = {kind.shape_of(models[trial], 1) for trial in chosen}
    rounding = ROUNDING if len(exact) > MOST_SEGMENTS else 1
    by_shape: dict[tuple[object, ...], dict[int, list[int]]] = {}
    for trial in chosen:
        batches = by_shape.setdefault(kind.shape_of(models[trial], rounding), {})
        batches.setdefault(batch_of[trial], []).append(trial)
    segments = []
    for by_batch in by_shape.values():
        counts: dict[int, list[int]] = {}
        for batch, trials in by_batch.items():
            counts.setdefault(len(trials), []).append(batch)
        for same in counts.values():
            trials = [trial for batch in same for trial in by_batch[batch]]
            segments.append((trials, same))
    return segments
