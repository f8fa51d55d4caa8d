"""Calls the engine. Arrays are passed by their addresses: the caller keeps them alive and checks
their shapes. A call runs without the interpreter's lock, so Python's threads run side by side.
"""

import ctypes
import functools
from collections.abc import Callable
from ctypes import POINTER, c_double, c_int64, c_void_p, sizeof
from dataclasses import dataclass
from typing import Any

from kindling.native import compiler
from kindling.system.errors import InputError

ACTIVATIONS = ("relu", "tanh", "gelu")
NORMS = (None, "batch", "layer")
OPTIMIZERS = ("sgd", "adam", "adamw")
LOSSES = ("cross_entropy", "squared_error", "huber", "binary_cross_entropy", "quantile")
BYTES, FLOATS, DOUBLES = 0, 1, 2  # features: uint8, scaled as by ToTensor; float32; float64
LINE = 64  # bytes: rows of weights begin at multiples
CROWDED = 1024  # bytes: rows at multiples of it would share few places of a cache


def _fields(*groups: tuple[type[Any], str]) -> list[tuple[str, type[Any]]]:
    """The fields of a structure, from types and the names that have them, in this order."""
    return [(name, kind) for kind, names in groups for name in names.split()]


class LayerStruct(ctypes.Structure):
    """Where the tensors of a layer lie in a flat vector: the weight is (inputs, stride), the others
    are (stride,). -1 if the layer has no such tensor."""

    _fields_ = _fields(
        (c_int64, "inputs units stride weight bias scale shift mean variance"),
        (c_double, "dropout"),
    )


class _Network(ctypes.Structure):
    _fields_ = _fields(
        (c_void_p, "layers"), (c_int64, "depth activation norm"),
        (c_double, "input_dropout noise max_norm eps momentum"),
        (c_int64, "size loss"), (c_double, "delta"),
    )  # fmt: skip


class Optimizer(ctypes.Structure):
    """The settings of torch's optimizer of that name; `kind` is an index into OPTIMIZERS."""

    _fields_ = _fields(
        (c_int64, "kind nesterov"), (c_double, "weight_decay momentum beta1 beta2 eps")
    )


class PlanStruct(ctypes.Structure):
    """How batches become steps. A clip, smoothing or decay of 0 is none. `class_weights` is the
    address of a float64 for each class, or None: weights of the losses, as torch's cross entropy
    has them."""

    _fields_ = _fields(
        (c_int64, "batches_per_epoch accumulate"), (c_double, "clip smoothing ema_decay"),
        (c_void_p, "class_weights"),
    )  # fmt: skip


class Exchange(ctypes.Structure):
    """How the processes of a run sum their gradients, which the model then stores: `slots` is the
    address of 2 x ranks flat vectors and `written` that of 8 int64 for each rank, both 0 at first
    and shared by all. `ended` is the address of an int32, 1 once another process has ended."""

    _fields_ = _fields(
        (c_int64, "ranks rank"), (c_void_p, "slots written ended"), (c_int64, "round failed")
    )


class ModelStruct(ctypes.Structure):
    """The addresses of a model's flat vectors, and of an Exchange. Without a gradient, SGD adds
    each gradient times the rate to the weights at once. `steps` counts the optimizer's steps;
    `train` increases it."""

    _fields_ = _fields(
        (c_void_p, "weights gradient first second average exchange"), (c_int64, "seed steps")
    )


class BlockStruct(ctypes.Structure):
    """K batches of `batch` samples each, the first of them number `first` of the epoch. A call
    trains those from `begin` to `end`.

    Sample i is features[rows[i]], with label labels[rows[i]]; features[i] and labels[i] if `rows`
    is None. Rows are int64, rates (K,) float64. Labels are int64 classes (N,) of cross entropy,
    else float32 targets (N, outputs). `weights` are float32, (N,), or None. The engine writes
    losses (K,), means of the batches, and scores (K,), as tasks/task.py defines them, all float64.
    """

    _fields_ = _fields(
        (c_void_p, "features"), (c_int64, "source"), (c_void_p, "rows labels weights"),
        (c_int64, "batch epoch first begin end"), (c_void_p, "rates losses scores"),
    )  # fmt: skip


class SamplesStruct(ctypes.Structure):
    """The addresses of features (size, inputs) and of labels as of a BlockStruct, which are needed
    to compute losses. `source` is BYTES or FLOATS, or DOUBLES for a model of 64 bits."""

    _fields_ = _fields(
        (c_void_p, "features"), (c_int64, "source"), (c_void_p, "labels weights"), (c_int64, "size")
    )


class _Team(ctypes.Structure):
    _fields_ = [("threads", c_int64), ("rest", ctypes.c_char * 248)]


class MemberStruct(ctypes.Structure):
    """One thread of a team."""

    keeps: _Team  # the team, which must live as long
    _fields_ = [("team", c_void_p), ("number", c_int64)]


STRUCTURES = (
    LayerStruct, _Network, Optimizer, PlanStruct, Exchange, ModelStruct, BlockStruct,
    SamplesStruct, MemberStruct,
)  # fmt: skip


@dataclass(eq=False)
class Network:
    """A multilayer perceptron: widths are inputs, hidden layers, outputs; `dropouts` has one value
    per hidden layer; `loss` is one of LOSSES; `bits` is 32 or 64, the size of a float. `layers` has
    the places of its tensors in a flat vector of `size` floats."""

    widths: tuple[int, ...]
    bits: int = 32
    activation: str = "relu"
    norm: str | None = None
    dropouts: tuple[float, ...] = ()
    input_dropout: float = 0.0
    noise: float = 0.0  # standard deviation
    max_norm: float | None = None
    eps: float = 1e-5  # of the norms
    momentum: float = 0.1  # of a batch norm's running statistics
    loss: str = "cross_entropy"
    delta: float = 1.0  # of huber: where the square ends; of quantile: the lowest one

    @property
    def targets(self) -> int:
        """The numbers of a label, unless the labels are classes."""
        return self.widths[-1] // (3 if self.loss == "quantile" else 1)

    def __post_init__(self) -> None:
        depth, bytes_per_float = len(self.widths) - 1, self.bits // 8
        line = LINE // bytes_per_float
        self.layers, self.size = (LayerStruct * depth)(), 0

        def take(count: int, present: bool = True) -> int:
            if not present:
                return -1
            self.size += count
            return self.size - count

        for number, layer in enumerate(self.layers):
            hidden = number + 1 < depth
            layer.inputs, layer.units = self.widths[number : number + 2]
            stride = -(-layer.units // line) * line
            layer.stride = stride = stride + line * (stride * bytes_per_float % CROWDED == 0)
            layer.weight = take(layer.inputs * stride)
            layer.bias = take(stride, not (self.norm == "batch" and hidden))
            layer.scale = take(stride, self.norm is not None and hidden)
            layer.shift = take(stride, self.norm is not None and hidden)
            layer.dropout = self.dropouts[number] if hidden and self.dropouts else 0.0
        for number, layer in enumerate(self.layers):  # the statistics follow all that is trained
            running = self.norm == "batch" and number + 1 < depth
            layer.mean, layer.variance = take(layer.stride, running), take(layer.stride, running)
        self._network = _Network(
            ctypes.addressof(self.layers), depth, ACTIVATIONS.index(self.activation),
            NORMS.index(self.norm), self.input_dropout, self.noise,
            self.max_norm or 0.0, self.eps, self.momentum, self.size,
            LOSSES.index(self.loss), self.delta,
        )  # fmt: skip
        self.pointer = ctypes.byref(self._network)


class Engine:
    """The engine in a built library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._functions: dict[tuple[str, int], Callable[..., Any]] = {}
        found = (c_int64 * (len(STRUCTURES) + 1))()
        library.sizes(found)
        *own, team = [sizeof(structure) for structure in (*STRUCTURES, _Team)]
        if [*found][:-1] != own or found[len(own)] > team:
            raise OSError(f"its structures have sizes {[*found]}, not {[*own, team]}")
        arguments: dict[str, tuple[Any, ...]] = {
            "scratch_bytes": (c_int64,),
            "train": (
                *map(POINTER, (Optimizer, PlanStruct, ModelStruct, BlockStruct, MemberStruct)),
                c_void_p,
            ),
            "evaluate": (c_void_p, POINTER(SamplesStruct), *(c_void_p,) * 4),
            "logits": (c_void_p, POINTER(SamplesStruct), *(c_void_p,) * 2),
        }
        for bits in (32, 64):
            for name, types in arguments.items():
                function = self._functions[name, bits] = library[f"{name}_{bits}"]
                function.restype = c_int64 if name in ("scratch_bytes", "train") else None
                function.argtypes = (c_void_p, *types)
        self.alone = self.team(1)[0]

    def team(self, threads: int) -> list[MemberStruct]:
        """The members of a new team of threads that train one model together."""
        team = _Team()
        self._library.open_team(ctypes.byref(team), c_int64(threads))
        members = [MemberStruct(ctypes.addressof(team), number) for number in range(threads)]
        for member in members:
            member.keeps = team
        return members

    def _call(self, name: str, network: Network, *arguments: Any) -> Any:
        return self._functions[name, network.bits](network.pointer, *arguments)

    def scratch_bytes(self, network: Network, batch: int) -> int:
        """The bytes of working memory for batches of up to `batch` samples."""
        return int(self._call("scratch_bytes", network, batch))

    def train(
        self,
        network: Network,
        settings: tuple[Optimizer, PlanStruct],
        model: ModelStruct,
        block: BlockStruct,
        scratch: int,
        member: MemberStruct | None = None,
    ) -> None:
        """Trains a model on a block. `scratch` is the address of working memory that no other call
        uses now. Each `member` of a team needs a thread and the same arguments. Raises
        ConnectionError if another process of the run has ended."""
        if not self._call("train", network, *settings, model, block, member or self.alone, scratch):
            raise ConnectionError("gradients: connection closed by peer")

    def evaluate(
        self,
        network: Network,
        weights: int,
        samples: SamplesStruct,
        scratch: int,
        logits: int | None = None,
    ) -> tuple[float, float]:
        """The sums of the losses and of the scores of samples. Writes the logits (samples, outputs)
        to the address `logits`."""
        loss, score = c_double(), c_double()
        found = ctypes.byref(loss), ctypes.byref(score)
        self._call("evaluate", network, weights, samples, *found, logits, scratch)
        return loss.value, score.value

    def logits(
        self, network: Network, weights: int, samples: SamplesStruct, out: int, scratch: int
    ) -> None:
        """Writes the logits (samples, outputs) to the address `out`."""
        self._call("logits", network, weights, samples, out, scratch)


@functools.cache
def _opened() -> tuple[Engine | None, str]:
    path, reason = compiler.find()
    if path is None:
        return None, reason
    try:
        return Engine(ctypes.CDLL(str(path))), ""
    except (OSError, AttributeError) as error:  # no library, or another one
        return None, f"{path}: cannot be loaded ({error}); type {compiler.BUILD}"


def why_absent() -> str:
    """Why there is no engine in this process; "" if there is one."""
    return _opened()[1]


def state() -> dict[str, str | None]:
    """The instruction set of the engine in this process, or the reason why there is none."""
    reason = why_absent()
    return {"instruction_set": None if reason else compiler.found_level(), "reason": reason or None}


def engine() -> Engine:
    """The engine. Raises InputError if there is none."""
    found, reason = _opened()
    if found is None:
        raise InputError(reason)
    return found
