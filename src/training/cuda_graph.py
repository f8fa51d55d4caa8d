"""A block of optimizer steps as one CUDA graph: captured once, then replayed as one launch.

A small network's step is bound by the launches of its kernels, not by its arithmetic. What the
kernels read lies at fixed places: the block's features and labels, and a table of learning rates
that is filled before each replay.
"""

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

log = logging.getLogger(__name__)

Run = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]
Replay = Callable[[], tuple[Tensor, ...]]
# Of the largest magnitude of each tensor: a replay runs the same kernels, in the same order.
TOLERANCE = 1e-4


def capture(run: Callable[[], tuple[Tensor, ...]]) -> Replay:
    """Records the kernels of `run` without running them; the call returned runs them."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = run()

    def replay() -> tuple[Tensor, ...]:
        graph.replay()
        return outputs

    return replay


def warm_up(run: Callable[[], tuple[Tensor, ...]]) -> None:
    """Runs it on a stream of its own, as capturing needs: libraries allocate their workspaces."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(stream)


class BlockGraph:
    """`run(features, labels, table)` trains on a block; the graph does the same to the same state.

    Weights and optimizer state are as they were when this is built: what warming up and checking
    change is put back. Raises RuntimeError where a replay does not do what `run` does.
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
        """`checked=False` where random numbers keep two executions from being alike."""
        self.inputs = [tensor.clone() for tensor in block]
        self.parameters, self.optimizer = parameters, optimizer

        def train() -> tuple[Tensor, ...]:
            return run(*self.inputs)

        before = self._state()
        warm_up(train)
        self._restore(before)
        if checked:  # twice each: a number that should count on would be the same in both replays
            train()
            train()
            expected = self._state()
            self._restore(before)
        self.replay = capture(train)
        if checked:
            self.replay()
            self.replay()
            found = self._state()
            self._restore(before)
            for key, value in expected.items():
                error = (found[key] - value).abs().max()
                if not error <= TOLERANCE * value.abs().max().clamp(min=1):
                    raise RuntimeError(f"its replay is off by {error.item():.2g}")

    def __call__(self, *block: Tensor) -> tuple[Tensor, ...]:
        """Trains on a block of the same shapes; the outputs are copies."""
        for own, given in zip(self.inputs, block, strict=True):
            own.copy_(given)
        return tuple(output.clone() for output in self.replay())

    def _tensors(self) -> dict[str, Tensor]:
        found = {f"parameter {number}": value for number, value in enumerate(self.parameters)}
        for number, state in enumerate(self.optimizer.state.values()):
            for name, value in state.items():
                if isinstance(value, Tensor):
                    found[f"{name} {number}"] = value
        return found

    def _state(self) -> dict[str, Tensor]:
        return {key: value.detach().clone() for key, value in self._tensors().items()}

    @torch.no_grad()
    def _restore(self, state: dict[str, Tensor]) -> None:
        """Puts values back in place; what came into being since then is zero, as it begins."""
        for key, value in self._tensors().items():
            if key in state:
                value.copy_(state[key])
            else:
                value.zero_()
