"""What Kindling finds here. It imports no torch: what needs torch is named in a text.

The name of a section is what people type, model=mine, and the name of its file in conf/. A section
has a line for each key: its type and its range. The default values are in conf/.
"""

from pathlib import Path
from typing import ClassVar, Literal

from kindling.config import registry
from kindling.config.section import DataSection, ModelSection, NonNegativeFloat, PositiveInt


class Model(ModelSection):
    name: Literal["mine"]
    units: PositiveInt


class Data(DataSection):
    pictures: ClassVar = None  # the samples are not pictures
    name: Literal["mine"]
    points: PositiveInt
    noise: NonNegativeFloat


registry.register_model(Model, "mine.model:build")
registry.register_data(Data, "mine.data")
registry.register_loss("mine", "mine.loss:focal")
registry.register_callback("mine", "mine.callback:build")
registry.register_configs(Path(__file__).parent / "conf")
