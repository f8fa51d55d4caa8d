"""One CUDA kernel for a block of steps, in which each thread block trains a trial."""

import ctypes
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from kindling.config.measures import CLASSIFICATION
from kindling.config.schema import Config
from kindling.data.loader import Block, Rows
from kindling.models.closed_form import ClosedForm, closed_form_of
from kindling.models.mlp import DenseClosedForm, architecture_of
from kindling.native import kernel
from kindling.native.engine import ACTIVATIONS
from kindling.native.kernel import MOST_WARPS, KernelError, Shape, arguments_type
from kindling.steps.base import CLOSED_FORM, BatchResults, StepChoice
from kindling.steps.closed_form import ClosedFormLearner
from kindling.steps.optimizers import set_rates
from kindling.system.errors import first_line

log = logging.getLogger(__name__)

LOWEST = (8, 0)  # the compute capability of the first GPUs with TF32
MOST_BLOCK_MEMORY = 227 * 1024  # of any GPU: H100, H200, B200
CHECKED = 3  # batches of the first block: with more, differences would grow
TOLERANCE = 1e-3  # largest accepted difference, relative to the largest magnitude of a trial
SOUND = 100.0  # the loss of a trial that does not diverge


def why_no_kernel(configs: Sequence[Config], models: Sequence[nn.Module]) -> str:
    """Why the kernel does not train these trials on the current CUDA device, or an empty text."""
    reason = next(filter(None, map(_why_not_trained, configs, models)), "") or kernel.why_absent()
    if reason:
        return reason
    if (capability := torch.cuda.get_device_capability()) < LOWEST:
        found = ".".join(map(str, capability))
        return f"the kernel needs compute capability 8.0, this GPU has {found}"
    limit, widest = block_memory(), max(map(_bytes, configs, models))
    if widest <= limit:
        return ""
    return (
        f"the largest network takes {widest:,} bytes of the memory of a thread block with its "
        f"batch, and this GPU has {limit:,}"
    )


def is_trained(config: Config, model: nn.Module, memory: int) -> bool:
    """Whether the kernel trains a trial on one GPU whose thread blocks have so many bytes."""
    return not _why_not_trained(config, model) and _bytes(config, model) <= memory


def block_memory() -> int:
    """The bytes that a thread block of the kernel has on the current CUDA device; 0 if the kernel
    cannot run there."""
    if kernel.why_absent() or torch.cuda.get_device_capability() < LOWEST:
        return 0
    return torch.cuda.get_device_properties().shared_memory_per_block_optin


def _why_not_trained(config: Config, model: nn.Module) -> str:
    trainer, data, optimizer = config.trainer, config.data, config.optimizer
    wanted: dict[str, Any] = {
        f"trainer.precision={trainer.precision}": trainer.precision != "32",
        "trainer.accumulate_grad_batches": trainer.accumulate_grad_batches > 1,
        "trainer.gradient_clip_val": trainer.gradient_clip_val is not None,
        "trainer.ema_decay": trainer.ema_decay is not None,
        "trainer.class_weights": trainer.class_weights is not None,
        f"task={config.task.name}": config.task.name != CLASSIFICATION,
        f"data.loader={data.loader}": data.loader != "resident",
        "augmentation": config.augmentation.chosen,
        f"optimizer={optimizer.name}": optimizer.name != "sgd",
        "optimizer.momentum": getattr(optimizer, "momentum", 0),
        "optimizer.weight_decay": optimizer.weight_decay,
    }
    kind = closed_form_of(model)
    known = kind is not None and issubclass(kind, DenseClosedForm)
    if known:
        architecture = architecture_of(model)
        wanted |= {
            f"model.activation={architecture.activation}": architecture.activation
            not in ACTIVATIONS,
            "model.dropout": any(architecture.dropouts) or architecture.input_dropout,
            "model.norm": architecture.norms,
            "model.noise": architecture.noise,
            "model.max_norm": architecture.max_norm,
        }
    reason = next((f"the kernel has no {key}" for key, value in wanted.items() if value), "")
    return reason or ("" if known else f"the kernel does not know {type(model).__name__}")


def _bytes(config: Config, model: nn.Module) -> int:
    return shape_of(model, config.data.batch, config.trainer.label_smoothing).shared_bytes


def shape_of(model: nn.Module, rows: int, smoothing: float) -> Shape:
    architecture = architecture_of(model)
    return Shape(architecture.widths, rows, True, architecture.activation, smoothing)


class KernelLearner(ClosedFormLearner):
    """Trains a stack by the kernel. The first batches are trained by closed form too. If the
    results differ, or if the kernel fails in any way, the closed form goes on."""

    def begin(self, *arguments: Any) -> None:
        super().begin(*arguments)
        self.checked = False
        self.rows = 0  # the samples of the largest batch so far
        self.tables = []  # for each segment, the order and the column of each trial
        for segment in self.stack.segments:
            share = len(segment.trials) // len(segment.batches)
            orders = segment.batch_index.repeat_interleave(share)
            self.tables.append((orders.int(), segment.trial_index.int()))

    def train(self, block: Block | Rows, epoch: int, batch: int) -> BatchResults:
        if isinstance(block, Rows) and self.fallback is None:
            table = self.on_device(self.rates(epoch, batch, block.batches))
            before = self._weights()  # of several segments, the first may have been trained
            try:
                if not self.checked:
                    self._check(block, table, epoch, batch, before)
                results = self._launch(block, table)
            except Exception as error:  # of NVRTC, the driver, their packages, a full memory, …
                kind = "" if isinstance(error, KernelError) else f"{type(error).__name__}: "
                self.fallback = StepChoice(CLOSED_FORM, f"{kind}{first_line(error)}")
                log.info("batches run without the CUDA kernel: %s", self.fallback.reason)
                self._restore(before)
            else:
                set_rates(self.optimizer, table[-1])
                self.stack.count_batches(block.batches)
                return results
        return super().train(block, epoch, batch)

    def _launch(self, block: Rows, table: Tensor) -> BatchResults:
        """Queues the kernels of all segments, at the rates (K, S) of the table."""
        count, orders, size = block.rows.shape
        self.rows = max(self.rows, size)
        losses = torch.empty_like(table)
        correct = torch.empty(table.shape, dtype=torch.int64, device=table.device)
        features, labels = block.features.contiguous(), block.labels.contiguous()
        rows = block.rows.contiguous()
        for segment, (order_of, column_of) in zip(self.stack.segments, self.tables, strict=True):
            shape = self._shape(segment, features)
            tensors = (features, labels, rows, order_of, column_of, table, losses, correct)
            arguments = arguments_type(shape.layers)(
                *(tensor.data_ptr() for tensor in tensors),
                _pointers([part.weight for part in segment.parts]),
                _pointers([part.bias for part in segment.parts if part.bias is not None]),
                count, orders, size, table.shape[1],
            )  # fmt: skip
            trials = len(segment.trials)
            launch(replace(shape, warps=warps_of(shape, trials)), arguments, trials, table.device)
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
    def _check(
        self, block: Rows, table: Tensor, epoch: int, batch: int, before: Sequence[Tensor]
    ) -> None:
        """Trains some batches by both ways, and takes them back. Raises KernelError if the results
        differ, and what a launch raises."""
        self.checked = True
        few = Rows(block.features, block.labels, block.rows[:CHECKED])
        why_no_graph, self.why_no_graph = self.why_no_graph, "the kernel is being checked"
        try:
            expected = self._trained(super().train(few, epoch, batch), before)
        finally:
            self.why_no_graph = why_no_graph
        found = self._trained(self._launch(few, table[:CHECKED]), before)
        for value, other in zip(found, expected, strict=True):
            # A trial that diverges does so in another way after each rounding.
            sound = (other[:, : len(few.rows)].abs() < SOUND).all(1)
            bounds = TOLERANCE * other[sound].abs().amax(1, keepdim=True).clamp(min=1)
            errors = (value[sound] - other[sound]).abs() / bounds
            if not (errors <= 1).all():
                raise KernelError(f"its results are off by {TOLERANCE * errors.max().item():.2g}")

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

    def _weights(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.stack.parameters]

    def _restore(self, weights: Sequence[Tensor]) -> None:
        for parameter, value in zip(self.stack.parameters, weights, strict=True):
            parameter.data.copy_(value)


RESERVED = 1024  # bytes of each thread block's memory that belong to CUDA


def warps_of(shape: Shape, trials: int) -> int:
    """Half of all warps, if a multiprocessor then has two thread blocks where it had one."""
    if not torch.cuda.is_available():
        return MOST_WARPS
    card = torch.cuda.get_device_properties()
    fits = 2 * (shape.shared_bytes + RESERVED) <= card.shared_memory_per_multiprocessor
    return MOST_WARPS // 2 if fits and trials > card.multi_processor_count else MOST_WARPS


def launch(shape: Shape, arguments: Any, trials: int, device: torch.device) -> None:
    """Queues the kernel on the current stream. Raises KernelError."""
    with torch.cuda.device(device):
        number, capability = torch.cuda.current_device(), torch.cuda.get_device_capability()
        queue = kernel.load(shape, number, capability)
        queue(arguments, trials, torch.cuda.current_stream().cuda_stream)


def _pointers(tensors: Sequence[Tensor]) -> Any:
    assert all(tensor.is_contiguous() for tensor in tensors)
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
