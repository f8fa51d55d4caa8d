"""What Kindling finds here. Imports no torch."""

from pathlib import Path
from typing import ClassVar, Literal

from kindling.config.registry import (
    register_command,
    register_configs,
    register_data,
    register_pictures,
)
from kindling.config.section import DRAWING, DataSection


class MnistAndNone(DataSection):
    pictures: ClassVar = DRAWING
    name: Literal["mnist_and_none"]


register_data(MnistAndNone, "kindling_digits.mnist_and_none", "MNIST/raw")
register_configs(Path(__file__).parent / "conf")
register_pictures(DRAWING, "kindling_digits.reader")
register_command("demo", "kindling_digits.demo")
