"""Fully sharded data parallel training: each rank keeps its part of weights, gradients and state.

torch's `fully_shard` (FSDP2) gathers the weights of a layer before its computation and scatters the
mean of its gradients afterwards. Checkpoints hold whole tensors, as in any other run.
"""

import copy
from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from kindling.ranks.processes import RanksStrategy
from kindling.steps.base import whole


def shard(model: nn.Module, device: torch.device) -> None:
    """Shards the weights of every layer over all ranks, in place."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for module in model.modules():
        if next(module.parameters(recurse=False), None) is not None:
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)


class Shards(RanksStrategy):
    """Shards the model of a run while it trains; the test has whole weights. Lightning's
    FSDPStrategy needs a GPU; its ModelParallelStrategy has checkpoints of its own format."""

    def configure_ddp(self) -> None:
        super().configure_ddp()
        model = self.trained
        with torch.device("meta"):
            self.unsharded = copy.deepcopy(model).to("meta")
        shard(model, self.root_device)

    @property
    def trained(self) -> nn.Module:
        return cast(nn.Module, self.lightning_module.model)  # type: ignore[union-attr]

    def on_train_end(self) -> None:
        """Puts the model together. Not in `teardown`, which a failed rank calls without others."""
        weights = {name: whole(value).detach() for name, value in self.trained.state_dict().items()}
        self.unsharded.to_empty(device=self.root_device).load_state_dict(weights)
        self.lightning_module.model = self.unsharded  # type: ignore[union-attr]

    def teardown(self) -> None:
        self.optimizers = []  # Lightning would move their sharded state to the CPU
        super().teardown()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        state = super().lightning_module_state_dict()
        return {name: whole(value) for name, value in state.items()}

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        state = super().optimizer_state(optimizer)
        parts: dict[int, dict[str, Any]] = state["state"]  # type: ignore[assignment]
        gathered = {
            number: {name: whole(value) for name, value in values.items()}
            for number, values in parts.items()
        }
        return state | {"state": gathered}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Raises ValueError when the state belongs to other parameters."""
        (optimizer,), (state,) = self.optimizers, checkpoint["optimizer_states"]
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        sharded = {
            number: {name: _like(parameters[number], value) for name, value in values.items()}
            for number, values in state["state"].items()
        }
        optimizer.load_state_dict(state | {"state": sharded})


def _like(parameter: Tensor, value: Any) -> Any:
    """Shards a moment of a parameter like the parameter. Other values are not changed."""
    if not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    assert isinstance(parameter, DTensor)
    value = value.to(parameter.device)
    return distribute_tensor(value, parameter.device_mesh, parameter.placements)
