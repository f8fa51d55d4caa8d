"""What the outputs of a model mean: a task has the loss, the score, and the gradient of the loss.

In the outputs of M models side by side, (M, outputs, N), the second dimension is that of the
outputs. Labels are int64 classes (…, N), or float32 targets (…, N, outputs). The engine for CPUs
and the kernel for CUDA compute the same losses in code of their own (native/network.h,
native/kernel.cu).
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import ClassVar

import torch
from torch import Tensor

from kindling.config import registry, schema
from kindling.config.measures import REGRESSION
from kindling.system.errors import InputError, first_line

Function = Callable[..., Tensor]


class Task:
    """A task with the loss of a configuration, for so many classes or labels."""

    real_scores: ClassVar[bool] = False  # whether scores are real numbers; else they are counts
    says: ClassVar[str]  # what an exported model returns, in a word; see `answers`
    # The loss of the engine (native/engine.py), and the bound of Huber's; None: it has none.
    native: tuple[str, float] | None = None
    has_residual = True  # whether `residual` is written out

    def __init__(self, section: schema.Task, labels: int) -> None:
        self.section, self.labels, self.outputs = section, labels, section.outputs(labels)
        self.judge = self  # the task whose `scores` take what an exported model says

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of each sample, (M, N); of several numbers, their mean."""
        raise NotImplementedError

    def loss(
        self,
        outputs: Tensor,
        labels: Tensor,
        weights: Tensor | None = None,
        smoothing: float = 0.0,
        factors: Tensor | None = None,
    ) -> Tensor:
        """The mean loss of one model's outputs (N, outputs). Only classification has class weights
        (classes,) and smoothing. `factors` (N,) are those of `factors_of`."""
        factors = None if factors is None else factors[None, None]
        found = self.batch_losses(
            outputs.mT[None, None], labels[None, None], weights, smoothing, factors
        )
        return found[0, 0]

    def batch_losses(
        self,
        outputs: Tensor,
        labels: Tensor,
        weights: Tensor | None = None,
        smoothing: float = 0.0,
        factors: Tensor | None = None,
    ) -> Tensor:
        """The loss of each batch, (K, M), of outputs (K, M, outputs, B); `factors` (K, M, B)."""
        del weights, smoothing
        found = self.losses(outputs.flatten(0, 1), labels.flatten(0, 1))
        found = found.view(*outputs.shape[:2], -1)
        return (found if factors is None else found * factors).mean(-1)

    def scores(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """What is summed over samples for the task's score, (M, N): the number of correct classes
        or labels, or the squared errors."""
        raise NotImplementedError

    def score(self, total: float, samples: float, spread: float) -> float:
        """The score of a model, as config/measures.py names it, from the sum of `scores`, and the
        number of samples or the sum of their weights. `spread` is data/targets.py's `spread` of
        the labels."""
        raise NotImplementedError

    def central(self, outputs: Tensor) -> Tensor:
        """What is compared with labels, (M, labels, N): logits or numbers."""
        return outputs

    def probabilities(self, outputs: Tensor) -> Tensor:
        """What the model says, from its outputs (…, outputs): probabilities, or numbers."""
        raise NotImplementedError

    def predicted(self, said: Tensor) -> Tensor:
        """Of what the model says, (…, outputs), the prediction of each label, (…, labels)."""
        return said

    @property
    def quantiles(self) -> bool:
        """Whether a model says QUANTILES of each number."""
        return False

    def answers(self, outputs: Tensor) -> Tensor:
        """What an exported model returns."""
        return self.probabilities(outputs)

    def opinions(self, outputs: Tensor) -> Tensor:
        """What a committee keeps of the outputs of a member."""
        return outputs

    def mean(self, opinions: Tensor, votes: Sequence[int]) -> Tensor:
        """The outputs (N, outputs) of a committee: the weighted mean of what its members say, of
        their opinions (N, members, outputs)."""
        raise NotImplementedError

    def confusion(self, outputs: Tensor, labels: Tensor) -> Tensor | None:
        """Counts (classes, classes), of true and decided classes; None without classes."""
        del outputs, labels
        return None

    # --- for gradients that are written out ------------------------------------------------------

    def targets(
        self,
        labels: Tensor,
        like: Tensor,
        weights: Tensor | None = None,
        smoothing: float = 0.0,
    ) -> tuple[Tensor, Tensor | None]:
        """Targets (K, R, 1, outputs, B) of labels (K, R, B, …), and their sums over outputs
        (K, R, 1, 1, B) where `residual` needs the sums."""
        del weights, smoothing
        return labels.mT.to(like.dtype).unsqueeze(2), None

    def residual(self, outputs: Tensor, targets: Tensor, totals: Tensor | None) -> Tensor:
        """The gradient (S, outputs, B) of the sum of the losses, of outputs (S, outputs, B) and
        targets (R, 1, outputs, B)."""
        raise NotImplementedError

    def summed_losses(
        self, outputs: Tensor, targets: Tensor, factors: Tensor | None = None
    ) -> Tensor:
        """The sum over samples of each model's losses, (S,), for what `residual` takes; `factors`
        (R, 1, 1, B)."""
        labels = _by_model(targets, len(outputs)).mT
        return _summed(self.losses(outputs, labels), factors)


def _by_model(of_batches: Tensor, models: int) -> Tensor:
    """What R batches have, (R, 1, …), for each of S models: (S, …)."""
    shape = [-1, models // len(of_batches), *[-1] * (of_batches.dim() - 2)]
    return of_batches.expand(*shape).flatten(0, 1)


def _summed(losses: Tensor, factors: Tensor | None) -> Tensor:
    if factors is not None:
        losses = losses * _by_model(factors, len(losses))[:, 0]
    return losses.sum(-1)


def factors_of(samples: Tensor, labels: Tensor, class_weights: Tensor | None = None) -> Tensor:
    """The factors (…, B) by which the losses of samples with these weights (…, B) are multiplied,
    so that the mean over a batch is the weighted mean. Class weights are in the losses already, as
    torch's cross entropy has them. A batch whose weights are all 0 has the loss 0."""
    # The last bits of a sum depend on the number of batches beside it, except in float64.
    exact = torch.float32 if samples.device.type == "mps" else torch.float64
    relative = None if class_weights is None else class_weights[labels].to(exact)
    weighted = samples.to(exact) if relative is None else samples * relative
    mean = weighted.mean(-1, keepdim=True)
    mean = torch.where(mean == 0, torch.ones_like(mean), mean)
    if relative is not None:
        mean = mean / relative.mean(-1, keepdim=True)
    return (samples / mean).to(samples.dtype)


class CustomLoss(Task):
    """A task whose loss an extension has registered: a function of outputs (N, outputs) and labels
    (N, …) that returns the loss of each sample, (N,). `numbers`: of a regression, the function that
    makes numbers of the outputs. Both get several outputs of each label as (N, labels, outputs)."""

    has_residual, native = False, None

    def __init__(self, task: Task, function: Function, numbers: Function | None) -> None:
        super().__init__(task.section, task.labels)
        self.judge, self.function, self.numbers = task, function, numbers
        self._try()

    @property
    def real_scores(self) -> bool:  # type: ignore[override]
        return self.judge.real_scores

    @property
    def says(self) -> str:  # type: ignore[override]
        return self.judge.says

    def scores(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.judge.scores(self.central(outputs), labels)

    def score(self, total: float, samples: float, spread: float) -> float:
        return self.judge.score(total, samples, spread)

    def central(self, outputs: Tensor) -> Tensor:
        return outputs if self.numbers is None else self._numbers(outputs.mT).mT

    def probabilities(self, outputs: Tensor) -> Tensor:
        return self.judge.probabilities(outputs if self.numbers is None else self._numbers(outputs))

    def answers(self, outputs: Tensor) -> Tensor:
        return self.judge.answers(outputs) if self.numbers is None else self._numbers(outputs)

    def opinions(self, outputs: Tensor) -> Tensor:
        return self.judge.opinions(outputs)

    def mean(self, opinions: Tensor, votes: Sequence[int]) -> Tensor:
        return self.judge.mean(opinions, votes)

    def confusion(self, outputs: Tensor, labels: Tensor) -> Tensor | None:
        return self.judge.confusion(outputs, labels)

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The function gets copies, which it may change in place."""
        copies = self._by_label(outputs.mT.flatten(0, 1)).clone(), labels.flatten(0, 1).clone()
        return self.function(*copies).view(labels.shape[:2])

    def _by_label(self, outputs: Tensor) -> Tensor:
        """(N, labels, outputs) of (N, outputs) where a label has several."""
        each = self.outputs // self.labels
        return outputs.reshape(-1, self.labels, each) if each > 1 else outputs

    def _numbers(self, outputs: Tensor) -> Tensor:
        """(…, labels) of (…, outputs), of which the function gets a copy."""
        assert self.numbers is not None
        found = self.numbers(self._by_label(outputs.reshape(-1, self.outputs)).clone())
        return found.view(*outputs.shape[:-1], self.labels)

    def targets(
        self,
        labels: Tensor,
        like: Tensor,
        weights: Tensor | None = None,
        smoothing: float = 0.0,
    ) -> tuple[Tensor, Tensor | None]:
        if labels.is_floating_point():
            return super().targets(labels, like, weights, smoothing)
        return labels[:, :, None, None], None

    def summed_losses(
        self, outputs: Tensor, targets: Tensor, factors: Tensor | None = None
    ) -> Tensor:
        labels = _by_model(targets, len(outputs))
        labels = labels.mT if targets.is_floating_point() else labels[:, 0]
        return _summed(self.losses(outputs, labels), factors)

    def _try(self) -> None:
        """Raises InputError if the function returns anything else than finite losses (N,), or
        losses that no gradient reaches."""
        flat = torch.linspace(-1, 1, 2 * self.outputs).view(2, -1).requires_grad_()
        labels, outputs = torch.tensor([0, self.outputs - 1]), self._by_label(flat)
        if self.section.name != "classification":
            labels = (torch.arange(2 * self.labels).view(2, -1) % 2).float()
        name = self.section.loss
        where = f"task.loss={name} ({registry.location(self.section.name + '.loss', name)})"
        if self.numbers is not None:
            numbers = self.numbers(outputs.clone())
            if not isinstance(numbers, Tensor) or numbers.shape != labels.shape:
                raise InputError(
                    f"task.loss={name} ({registry.location('numbers', name)}): returns "
                    f"{_shape_of(numbers)} for 2 samples, must return their numbers, "
                    f"{tuple(labels.shape)}"
                )
        found = self.function(outputs.clone(), labels.clone())
        if not isinstance(found, Tensor) or found.shape != (2,):
            raise InputError(
                f"{where}: returns {_shape_of(found)} for 2 samples, must return the loss of each, "
                '(2,); write reduction="none", and a mean over the outputs'
            )
        if not found.isfinite().all():
            raise InputError(
                f"{where}: returns {found.tolist()} for outputs {outputs.tolist()!s:.100} and "
                f"labels {labels.tolist()}, must return finite numbers"
            )
        if not found.requires_grad:
            raise InputError(f"{where}: no gradient reaches the outputs; use operations of torch")


def _shape_of(found: object) -> object:
    return tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__


def build_task(section: schema.Task, labels: int) -> Task:
    """The task of a configuration, for so many classes or labels. Raises InputError for a loss of
    an extension that cannot be used."""
    module = import_module(f"{__package__}.{section.name}")
    task: Task = module.build(section, labels)
    kind = f"{section.name}.loss"
    lies = registry.location(kind, section.loss)
    if lies is None:
        return task
    function = registry.resolve(kind, section.loss)
    maker = registry.location("numbers", section.loss) if section.name == REGRESSION else None
    numbers = None if maker is None else registry.resolve("numbers", section.loss)
    try:
        return CustomLoss(task, function, numbers)
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        each = section.outputs(labels) // labels
        shape, own = f"(N, {labels}{f', {each}' if each > 1 else ''})", ""
        if maker is not None:
            own = f"; {maker} gets the outputs alone, and returns numbers (N, {labels})"
        raise InputError(
            f"task.loss={section.loss}: {lies} fails for 2 samples "
            f"({type(error).__name__}: {first_line(error)}); it gets outputs {shape} and "
            f"labels, and returns losses (N,){own}"
        ) from error
