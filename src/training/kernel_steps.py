"""The optimizer steps of a block by one CUDA kernel, in which each thread block trains a trial."""

import ctypes
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from src.data.loader import Block, Rows, batches_per_block
from src.data.sources.source import as_float
from src.models.closed_form import ClosedForm
from src.models.kernel_models import shape_of
from src.native import kernel
from src.native.kernel import KernelError, Shape, arguments_type
from src.system.errors import first_line
from src.training.steps import BatchResults, ClosedFormSteps

log = logging.getLogger(__name__)

CHECKED = 3  # batches of the first block: with more, differences would grow
TOLERANCE = 1e-3  # largest accepted difference, relative to the largest magnitude of a trial
SOUND = 100.0  # the loss of a trial that does not diverge


class KernelSteps(ClosedFormSteps):
    """Trains a stack by the kernel. The first batches are trained by closed form too; if the
    results differ, or if the kernel cannot be compiled or started, the closed form goes on."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.why_no_kernel: str | None = None
        self.checked = False
        self.rows = 0  # the samples of the largest batch so far
        device = self.stack.parameters[0].device
        self.tables = [
            [torch.tensor(numbers, dtype=torch.int32, device=device) for numbers in pair]
            for pair in ((_order_of(segment), segment.trials) for segment in self.stack.segments)
        ]

    def __call__(self, block: Block | Rows, epoch: int, batch: int) -> BatchResults:
        if isinstance(block, Block):  # augmented
            return super().__call__(block, epoch, batch)
        table = self.on_device(self.rates(epoch, batch, block.batches))
        if not self.checked:
            self._check(block, table, epoch, batch)
        if self.why_no_kernel is not None:
            return self._by_closed_form(block, epoch, batch)
        results = self._launch(block, table)
        self.set_rates(table[-1])
        self.stack.count_batches(block.batches)
        return results

    def _by_closed_form(self, rows: Rows, epoch: int, batch: int) -> BatchResults:
        """The same steps from copies of the samples, as many at a time as a block may hold."""
        features, labels = rows.features, rows.labels
        values = rows.rows[0].numel() * features[0].numel()
        most = batches_per_block(4 * values, features.device)
        parts = []
        for first in range(0, rows.batches, most):
            chosen = rows.rows[first : first + most]
            block = Block(as_float(features[chosen]), labels[chosen])
            parts.append(super().__call__(block, epoch, batch + first))
        return BatchResults(*map(torch.cat, zip(*parts, strict=True)))

    def _launch(self, block: Rows, table: Tensor) -> BatchResults:
        """Trains on all batches of the block, at the rates (K, S) of the table."""
        count, orders, size = block.rows.shape
        self.rows = max(self.rows, size)
        losses = torch.empty_like(table)
        correct = torch.empty(table.shape, dtype=torch.int64, device=table.device)
        features, labels = block.features.contiguous(), block.labels.contiguous()
        rows = block.rows.contiguous()
        for segment, (order_of, column_of) in zip(self.stack.segments, self.tables, strict=True):
            shape = self._shape(segment, features)
            arguments = arguments_type(shape.layers)(
                *(
                    tensor.data_ptr()
                    for tensor in (
                        features, labels, rows, order_of, column_of, table, losses, correct,
                    )
                ),
                _pointers([part.weight for part in segment.parts]),
                _pointers([part.bias for part in segment.parts if part.bias is not None]),
                count, orders, size, table.shape[1],
            )  # fmt: skip
            launch(shape, arguments, len(segment.trials), table.device)
        return BatchResults(losses, correct)

    def _shape(self, segment: ClosedForm, features: Tensor) -> Shape:
        """With the widths of a segment, which may be padded."""
        trials = len(segment.trials)
        model = self.stack.models[segment.trials[0]]
        units = [part.weight.numel() // part.weight.shape[-1] // trials for part in segment.parts]
        return replace(
            shape_of(model, self.rows, self.step_plan.smoothing),
            units=(features[0].numel(), *units),
            whole_bytes=features.dtype == torch.uint8,
        )

    @torch.no_grad()
    def _check(self, block: Rows, table: Tensor, epoch: int, batch: int) -> None:
        """Compares both ways on some batches, after which the weights are as they were."""
        self.checked = True
        few = Rows(block.features, block.labels, block.rows[:CHECKED])
        before = [parameter.clone() for parameter in self.stack.parameters]
        why_no_graph, self.why_no_graph = self.why_no_graph, "the kernel is being checked"
        try:
            expected = self._trained(self._by_closed_form(few, epoch, batch), before)
            found = self._trained(self._launch(few, table[:CHECKED]), before)
        except KernelError as error:
            self._use_no_kernel(first_line(error))
            return
        finally:
            self.why_no_graph = why_no_graph
            self._restore(before)
        for value, other in zip(found, expected, strict=True):
            # A trial that diverges does so in another way after each rounding.
            sound = (other[:, : len(few.rows)].abs() < SOUND).all(1)
            bounds = TOLERANCE * other[sound].abs().amax(1, keepdim=True).clamp(min=1)
            errors = (value[sound] - other[sound]).abs() / bounds
            if not (errors <= 1).all():
                off = TOLERANCE * errors.max().item()
                self._use_no_kernel(f"its results are off by {off:.2g}")
                return

    def _trained(self, results: BatchResults, before: Sequence[Tensor]) -> list[Tensor]:
        """For each segment, the losses and the weights of its trials (S, numbers) after some steps,
        which are taken back."""
        found = []
        for segment in self.stack.segments:
            count, losses = len(segment.trials), results.losses.T[segment.trials]
            weights = [parameter.data.view(count, -1) for parameter in segment.parameters]
            found.append(torch.cat([losses, *weights], 1))
        self._restore(before)
        return found

    def _restore(self, weights: Sequence[Tensor]) -> None:
        for parameter, value in zip(self.stack.parameters, weights, strict=True):
            parameter.data.copy_(value)

    def _use_no_kernel(self, reason: str) -> None:
        self.why_no_kernel = reason
        log.info("batches run without the CUDA kernel: %s", reason)


def launch(shape: Shape, arguments: Any, trials: int, device: torch.device) -> None:
    """Queues the kernel on the current stream. Raises KernelError."""
    with torch.cuda.device(device):
        number = torch.cuda.current_device()
        loaded = kernel.load(shape, number, torch.cuda.get_device_capability())
        loaded.launch(arguments, trials, torch.cuda.current_stream().cuda_stream)


def _order_of(segment: ClosedForm) -> list[int]:
    """For each trial of a segment, the order that it takes its batches from."""
    share = len(segment.trials) // len(segment.batches)
    return [number for number in segment.batches for _ in range(share)]


def _pointers(tensors: Sequence[Tensor]) -> Any:
    assert all(tensor.is_contiguous() for tensor in tensors)
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
