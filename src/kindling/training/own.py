"""What `kindling.fit` and `kindling.sweep` get from the program beside a configuration: a model and
arrays. Both travel in the configuration (config/section.py, InMemory)."""

from dataclasses import dataclass
from typing import Any, Self

from torch import nn

from kindling.config.schema import Arrays, Config, Own
from kindling.config.section import DataSection, InMemory
from kindling.data.sources.arrays import OwnArrays
from kindling.data.sources.catalogue import describe
from kindling.models import build_model
from kindling.models.own import OwnModel
from kindling.records.folder import Run
from kindling.records.loading import open_trained
from kindling.system.errors import InputError


@dataclass(frozen=True)
class Given:
    """The model and the arrays of a program; None: those that the configuration names."""

    model: OwnModel | None
    arrays: OwnArrays | None

    @classmethod
    def of(cls, model: Any, data: Any, validation: Any, test: Any) -> Self:
        """Raises InputError for what is not a model, and for what cannot be read as arrays."""
        if data is None and any(each is not None for each in (validation, test)):
            raise InputError("validation and test go with data; type data=(x, y) too")
        arrays = None if data is None else OwnArrays(data=data, validation=validation, test=test)
        return cls(None if model is None else OwnModel(model), arrays)

    def tried(self, config: Config) -> Config:
        """As `hold`, after the data were read and the model has taken two samples. Raises
        InputError if they cannot, and if a configuration needs a program that has given nothing."""
        held = self.hold(config)
        if self.model is not None or self.arrays is not None:
            described = describe(held.data, held.task)
        if self.model is not None:
            outputs = held.task.outputs(described.classes)
            built = build_model(held.model, described.shape, outputs)
            self.model.class_name = type(built).__qualname__
            held = self.hold(config)
        for section in (held.data, held.model):
            if isinstance(section, InMemory):
                _ = section.held
        return held

    def hold(self, config: Config) -> Config:
        """The configuration with the model and the arrays. Raises InputError if it names others."""
        from kindling.config.compose import compose  # imports Hydra, which ranks do not need

        data, model = config.data, config.model
        if self.arrays is not None:
            if not isinstance(data, Arrays):
                if data.name != compose().data.name:
                    raise InputError(f"data={data.name}: data=(x, y) was given; leave one out")
                common = {key: getattr(data, key) for key in DataSection.model_fields}
                data = Arrays(name="arrays", **common)
            data = data.holding(self.arrays, digest=self.arrays.short_digest)
        if self.model is not None:
            if not isinstance(model, Own):
                if model != compose().model:
                    raise InputError(
                        f"model={model.name}: model={self.model.name} was given, which does not "
                        "use the settings of another; leave one out"
                    )
                model = Own(name="own")
            model = model.holding(self.model, class_name=self.model.class_name)
        return config.model_copy(update={"data": data, "model": model})

    def overrides(self) -> list[str]:
        """Those that stand for the model and the arrays in the record of a sweep."""
        from kindling.config.overrides import override_text  # as above

        texts = []
        if self.arrays is not None:
            texts += ["data=arrays", override_text("data.digest", self.arrays.short_digest)]
        if self.model is not None:
            texts += ["model=own", override_text("model.class_name", self.model.class_name)]
        return texts

    def take_best(self, run: Run) -> None:
        """Loads the best weights of a run into the module that the program has given."""
        given = self.model and self.model.given
        if isinstance(given, nn.Module) and run.best_checkpoint.exists():
            given.load_state_dict(open_trained(run.folder, given).model.state_dict())
