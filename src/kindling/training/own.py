"""What `kindling.fit` and `kindling.sweep` get from the program beside a configuration: a model and
arrays. Both travel in the configuration (config/section.py, InMemory)."""

from dataclasses import dataclass
from typing import Any, Self

from torch import nn

from kindling.config import schema
from kindling.config.compose import compose
from kindling.config.overrides import override_text
from kindling.config.schema import Config
from kindling.config.section import DataSection, InMemory
from kindling.data.sources.arrays import OwnArrays
from kindling.data.sources.catalogue import describe
from kindling.models import build_model
from kindling.models.own import OwnModel
from kindling.records.folder import Run
from kindling.records.loading import open_trained
from kindling.system.errors import InputError

DIGITS = 12  # of a digest in a configuration


@dataclass(frozen=True)
class Own:
    """The model and the arrays of a program; None: those that the configuration names."""

    model: OwnModel | None = None
    arrays: OwnArrays | None = None

    @classmethod
    def of(cls, model: Any, data: Any, validation: Any, test: Any) -> Self:
        """Raises InputError for what is not a model, and for what cannot be read as arrays."""
        if data is None and any(each is not None for each in (validation, test)):
            raise InputError("validation and test go with data; type data=(x, y) too")
        arrays = None if data is None else OwnArrays(data=data, validation=validation, test=test)
        return cls(None if model is None else OwnModel(model), arrays)

    def tried(self, config: Config) -> Config:
        """As `hold`, after the data have been read and the model has taken two samples. Raises
        InputError if they cannot, and if a configuration needs a program that has given nothing."""
        held = self.hold(config)
        if self.model is not None or self.arrays is not None:
            described = describe(held.data, held.task)
            if self.model is not None:
                built = build_model(held.model, described.shape, described.classes)
                self.model.class_name = type(built).__qualname__
                held = self.hold(config)
        for section in (held.data, held.model):
            if isinstance(section, InMemory):
                _ = section.held
        return held

    def hold(self, config: Config) -> Config:
        """The configuration with the model and the arrays. Raises InputError if it names others."""
        data, model = config.data, config.model
        if self.arrays is not None and not isinstance(data, schema.Arrays):
            if data.name != compose().data.name:
                raise InputError(f"data={data.name}: data=(x, y) names other data; leave one out")
            common = {key: getattr(data, key) for key in DataSection.model_fields}
            data = schema.Arrays(name="arrays", **common)
        if self.model is not None and not isinstance(model, schema.Own):
            if model != compose().model:
                raise InputError(
                    f"model={model.name}: has settings that model={self.model.name}, which was "
                    "given too, does not use; leave one of them out"
                )
            model = schema.Own(name="own")
        if isinstance(data, schema.Arrays) and self.arrays is not None:
            data = data.holding(self.arrays, digest=self.arrays.digest[:DIGITS])
        if isinstance(model, schema.Own) and self.model is not None:
            model = model.holding(self.model, class_name=self.model.class_name)
        return config.model_copy(update={"data": data, "model": model})

    def overrides(self) -> list[str]:
        """Those that stand for the model and the arrays in the record of a sweep."""
        texts = []
        if self.arrays is not None:
            texts += ["data=arrays", override_text("data.digest", self.arrays.digest[:DIGITS])]
        if self.model is not None:
            texts += ["model=own", override_text("model.class_name", self.model.class_name)]
        return texts

    def take_best(self, run: Run) -> None:
        """Loads the best weights of a run into the module that the program has given."""
        given = self.model and self.model.given
        if isinstance(given, nn.Module) and run.best_checkpoint.exists():
            given.load_state_dict(open_trained(run.folder, given).model.state_dict())
