"""Trains on a block by one CUDA graph: launching kernels takes most of a small network's step."""

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

log = logging.getLogger(__name__)

Run = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]
Replay = Callable[[], tuple[Tensor, ...]]
# The largest accepted error of a replay, relative to the largest magnitude of each tensor. A replay
# runs the same kernels in the same order.
TOLERANCE = 1e-4


def capture(run: Callable[[], tuple[Tensor, ...]]) -> Replay:
    """Records the kernels of `run` without running them. The returned function runs them."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = run()

    def replay() -> tuple[Tensor, ...]:
        graph.replay()
        return outputs

    return replay


def warm_up(run: Callable[[], tuple[Tensor, ...]]) -> None:
    """Calls `run` twice on another stream, so that libraries allocate their workspaces."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(stream)


class BlockGraph:
    """A CUDA graph that trains on a block as `run(features, labels, table)` does. Each block is
    copied to fixed addresses, from which the kernels read.

    The constructor restores weights and optimizer. Raises RuntimeError if a replay differs.
    """

    def __init__(
        self,
        run: Run,
        block: Sequence[Tensor],
        parameters: Sequence[Tensor],
        optimizer: Optimizer,
        *,
        checked: bool = True,
        warm_up: Callable[[Callable[[], tuple[Tensor, ...]]], None] = warm_up,
        capture: Callable[[Callable[[], tuple[Tensor, ...]]], Replay] = capture,
    ) -> None:
        """`checked=False` is for a `run` that draws random numbers, so that no two calls agree."""
        self.inputs = [tensor.clone() for tensor in block]
        self.parameters, self.optimizer = parameters, optimizer

        def train() -> tuple[Tensor, ...]:
            return run(*self.inputs)

        initial = self._state()
        warm_up(train)
        self._restore(initial)
        if checked:  # twice, to notice a number in Python that should change between replays
            train()
            train()
            expected = self._state()
            self._restore(initial)
        self.replay = capture(train)
        if checked:
            self.replay()
            self.replay()
            replayed = self._state()
            self._restore(initial)
            for key, value in expected.items():
                error = (replayed[key] - value).abs().max()
                if not error <= TOLERANCE * value.abs().max().clamp(min=1):
                    raise RuntimeError(f"its replay is off by {error.item():.2g}")

    def __call__(self, *block: Tensor) -> tuple[Tensor, ...]:
        """Trains on a block of the same shapes. The outputs are copies."""
        for target, tensor in zip(self.inputs, block, strict=True):
            target.copy_(tensor)
        return tuple(output.clone() for output in self.replay())

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {f"parameter {number}": value for number, value in enumerate(self.parameters)}
        for number, state in enumerate(self.optimizer.state.values()):
            for name, value in state.items():
                if isinstance(value, Tensor):
                    tensors[f"{name} {number}"] = value
        return tensors

    def _state(self) -> dict[str, Tensor]:
        return {key: value.detach().clone() for key, value in self._tensors().items()}

    @torch.no_grad()
    def _restore(self, state: dict[str, Tensor]) -> None:
        """Restores values in place. Optimizer state that was created later becomes zero."""
        for key, value in self._tensors().items():
            if key in state:
                value.copy_(state[key])
            else:
                value.zero_()
