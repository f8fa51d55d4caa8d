"""Registers the modules. Imports no torch."""

from pathlib import Path
from typing import Literal

from kindling.config import registry
from kindling.config.section import LightningDataSection, ModelSection, PositiveFloat, PositiveInt


class Template(ModelSection):
    name: Literal["template"]
    width: PositiveInt
    lr: PositiveFloat
    compile: bool


class TemplateData(LightningDataSection):
    name: Literal["template"]
    batch_size: PositiveInt
    num_workers: int


class Odd(ModelSection):
    name: Literal["odd"]
    kind: str
    lr: PositiveFloat


class Tokens(LightningDataSection):
    name: Literal["tokens"]
    batches: PositiveInt


class Wrong(ModelSection):
    name: Literal["wrong"]


HERE = "tests.helpers.lit"
registry.register_lightning_module(Template, f"{HERE}.build:template")
registry.register_lightning_module(Odd, f"{HERE}.odd:build", monitors={"val/score": "max"})
registry.register_model(Wrong, f"{HERE}.odd:build_wrongly")
registry.register_lightning_datamodule(TemplateData, f"{HERE}.build:template_data")
registry.register_lightning_datamodule(Tokens, f"{HERE}.odd:tokens")
for name in ("checkpoint", "rates", "swa", "early", "counts"):
    registry.register_callback(name, f"{HERE}.odd:{name}")
registry.register_configs(Path(__file__).parent / "conf")
