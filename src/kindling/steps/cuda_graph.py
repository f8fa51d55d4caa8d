"""Trains on batches by CUDA graphs: launching kernels takes most of a small network's step."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.optim import Optimizer

Run = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]
Replay = Callable[[], tuple[Tensor, ...]]
# The largest accepted error of a replay, relative to the largest magnitude of each tensor. A replay
# runs the same kernels in the same order.
TOLERANCE = 1e-4


def capture(run: Callable[[], tuple[Tensor, ...]]) -> Replay:
    """Records the kernels of `run` without running them. The returned function runs them."""
    graph = torch.cuda.CUDAGraph()
    try:
        # By default, a call of another thread that waits for the GPU, such as one that pins memory,
        # would end the capture.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            outputs = run()
    except BaseException:
        # After a capture that fails, torch 2.11 takes its random stream for one that is captured.
        stream = torch.cuda.default_generators[torch.cuda.current_device()]
        stream.graphsafe_set_state(stream.clone_state())
        raise

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


class BatchGraph:
    """A CUDA graph that trains on some batches as `run(features, labels, table)` does. The batches
    are copied to fixed addresses, from which the kernels read.

    The constructor leaves weights, optimizer and random streams as they were, whatever fails.
    Raises RuntimeError if capturing fails or a replay differs, and torch.OutOfMemoryError.
    """

    def __init__(
        self,
        run: Run,
        batches: Sequence[Tensor],
        parameters: Sequence[Tensor],
        optimizer: Optimizer,
    ) -> None:
        self.inputs = [tensor.clone() for tensor in batches]
        self.parameters, self.optimizer = parameters, optimizer
        initial = self._state()

        def train() -> tuple[Tensor, ...]:
            return run(*self.inputs)

        def trained(train: Callable[[], object]) -> dict[str, Tensor]:
            """The state after two calls, of which a number in Python would spoil the second."""
            with self._kept_random_streams():
                train()
                train()
            state = self._state()
            self._restore(initial)
            return state

        try:
            with self._kept_random_streams():
                warm_up(train)
            self._restore(initial)
            expected = trained(train)
            with self._kept_random_streams():
                self.replay = capture(train)
            replayed = trained(self.replay)
        finally:
            self._restore(initial)
        for key, value in expected.items():
            bound = TOLERANCE * value.nan_to_num(0, 0, 0).abs().max().clamp(min=1).item()
            # A trial may have diverged to NaN, in both alike.
            if not torch.isclose(replayed[key].double(), value.double(), 0, bound, True).all():
                error = (replayed[key] - value).abs().nan_to_num(0).max().item()
                raise RuntimeError(f"its replay is off by {error:.2g}")

    def __call__(self, *batches: Tensor) -> tuple[Tensor, ...]:
        """Trains on batches of the same shapes. The outputs are copies."""
        for target, tensor in zip(self.inputs, batches, strict=True):
            target.copy_(tensor)
        return tuple(output.clone() for output in self.replay())

    def _kept_random_streams(self) -> AbstractContextManager[None]:
        """Afterwards, the streams of the CPU and of the device stand where they stood before."""
        device = self.inputs[0].device
        return torch.random.fork_rng([device] if device.type == "cuda" else [])

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
