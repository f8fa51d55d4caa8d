"""The memory that a run needs, and what to type when there is not enough."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kindling.config.closed_form import FAMILIES
from kindling.config.schema import Config
from kindling.data.loader import CHUNK
from kindling.data.splits import Splits
from kindling.models import model_cost
from kindling.system.errors import InputError, first_line
from kindling.system.resources import free_memory, out_of_memory
from kindling.system.units import MIB

# Bytes; for less, the system is not asked for its free memory, to save a millisecond.
UNASKED = 2**26
LOOSE = 2  # the bound is at most so many times what a run needs


@contextmanager
def advice_on_memory(config: Config) -> Iterator[None]:
    """Turns exhausted memory into an InputError that says what to type."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        lines = "\n".join(f"  {text}" for text in _less_memory(config))
        raise InputError(f"out of memory ({first_line(error)}); type one of\n{lines}") from error


def _less_memory(config: Config) -> Iterator[str]:
    batch, accumulate = config.data.batch, config.trainer.accumulate_grad_batches
    if batch > 1:
        yield (
            f"data.batch_size={batch // 2} trainer.accumulate_grad_batches={2 * accumulate} "
            "(the same optimizer steps)"
        )
    if getattr(config.model, "gradient_checkpointing", None) is False:
        yield "model.gradient_checkpointing=true (activations are computed twice)"
    if key := config.model.sizes_key:
        yield f"a smaller model.{key} than {getattr(config.model, key)}"


def bytes_per_trial(
    config: Config, shape: Sequence[int], classes: int, batch: int, chunk: int = CHUNK
) -> int:
    """An upper bound of the memory of one trial in a stack: weights, gradients, two moments, best
    weights and moving average; activations of a batch and of a chunk of an evaluation; a batch."""
    cost = model_cost(config.model, shape, classes)
    copies = 5 + (config.trainer.ema_decay is not None)
    floats = copies * cost.model + cost.evaluated_sample * chunk + cost.trained_sample * batch
    return floats * (8 if config.trainer.precision == "64" else 4)


def require_room(config: Config, data: Splits) -> None:
    """Raises MemoryError for a run that certainly does not fit into the free memory: the system
    would kill the process, and perhaps others. Models without a closed form pass, because only a
    built model tells its size."""
    if config.model.name not in FAMILIES:
        return
    batch, source = min(config.data.batch, data.training_samples), data.source
    outputs = config.task.outputs(source.classes)
    chunk = min(CHUNK, max(map(len, (data.train, *data.validations, data.test))))
    needed = bytes_per_trial(config, source.shape, outputs, batch, chunk) // LOOSE
    if needed > UNASKED and needed > (free := free_memory()):
        told = f"the run needs {needed / MIB:,.0f} MiB"
        raise MemoryError(f"{told}, and {free / MIB:,.0f} MiB are free")
