"""What to type when the memory of the machine or of its GPU has run out."""

from collections.abc import Iterator
from contextlib import contextmanager

from kindling.config.schema import Config
from kindling.system.errors import InputError, first_line
from kindling.system.resources import out_of_memory


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
