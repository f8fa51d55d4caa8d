"""A model and arrays of a program: trained, resumed after kills, in stacks and by several ranks."""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import kindling
from benchmarks.crashes import fingerprint
from kindling.config.compose import compose
from kindling.data.sources.source import Split
from kindling.inference.logits import compute_logits
from kindling.records.loading import open_trained
from kindling.system.errors import InputError
from kindling.training.fit import fit
from kindling.training.own import Given
from tests.helpers.kills import Killed, die_after_writing
from tests.helpers.own import RECIPE, Net, X, Y, make, plain, recipe

OTHERS = X + 1


def weights_of(folder: Path, model: Any = make) -> dict[str, Tensor]:
    return open_trained(folder, model).model.state_dict()


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def copied(net: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in net.state_dict().items()}


def test_a_module_starts_as_it_is_and_ends_with_the_best_weights(tmp_path: Path) -> None:
    net, before = Net(), X.copy()
    start = copied(net)
    net.train(False)
    run = fit(recipe("trainer.max_epochs=3"), tmp_path / "run", model=net, data=(X, Y))
    assert run.result["status"] == "finished"
    assert run.result["step_reason"] == "Net has no closed form"
    assert (run.config.read("model.class_name"), run.config.data.name) == ("Net", "arrays")
    assert not net.training  # as it was
    assert np.array_equal(X, before)
    best = copied(net)
    assert equal(best, weights_of(tmp_path / "run"))
    assert not equal(best, start)
    again = Net()
    again.load_state_dict(start)
    fit(recipe("trainer.max_epochs=3"), tmp_path / "again", model=again, data=(X, Y))
    assert equal(copied(again), best)


class Centred(Net):
    """Centres its inputs, and scales them."""

    def forward(self, features: Tensor) -> Tensor:
        return super().forward((features - 1.0) * 2.0)


class InPlace(Net):
    def forward(self, features: Tensor) -> Tensor:
        features -= 1.0
        features *= 2.0
        return super().forward(features)


@pytest.mark.parametrize("precision", ["32", "64", "bf16-mixed"])
def test_a_model_may_change_its_inputs_in_place(precision: str, tmp_path: Path) -> None:
    """As with a DataLoader, whose batches are copies. Training, validation and test set are the
    same arrays, and stay as they were."""
    before, config = X.copy(), recipe(f"trainer.precision={precision}", epochs=3)
    split = Split(torch.from_numpy(X), torch.zeros(len(X), dtype=torch.long))
    sets: Any = {"data": (X, Y), "validation": (X, Y), "test": (X, Y)}
    measured, weights, logits = [], [], []
    for kind in (Centred, InPlace):
        torch.manual_seed(0)
        net, folder = kind(), tmp_path / kind.__name__
        run = fit(config, folder, model=net, **sets)
        rows = [row | {"seconds": None} for row in run.history]
        measured.append((rows, run.result["test/loss"], run.result["test/acc"]))
        weights.append(copied(net))
        logits.append(compute_logits(open_trained(folder, lambda *_, kind=kind: kind()), split))
        assert np.array_equal(X, before)
    assert measured[0] == measured[1]
    assert equal(*weights)
    assert torch.equal(*logits)


def test_it_is_the_training_of_plain_torch(tmp_path: Path) -> None:
    """Weights as given, whole batches, SGD by hand."""
    net = nn.Linear(4, 2)
    weight, bias = net.weight.detach().clone(), net.bias.detach().clone()
    config = recipe(
        "optimizer=sgd", "optimizer.lr=0.5", "data.val_fraction=null", "data.batch_size=200",
        "checkpoint.monitor=train/loss", epochs=3,
    )  # fmt: skip
    fit(config, tmp_path / "run", model=net, data=(X, Y), test=(X, Y))
    weight.requires_grad_()
    bias.requires_grad_()
    labels = torch.from_numpy(np.searchsorted(["high", "low"], Y))
    for _ in range(3):
        loss = nn.functional.cross_entropy(torch.from_numpy(X) @ weight.T + bias, labels)
        gradients = torch.autograd.grad(loss, [weight, bias])
        with torch.no_grad():
            weight -= 0.5 * gradients[0]
            bias -= 0.5 * gradients[1]
    torch.testing.assert_close(net.weight, weight)
    torch.testing.assert_close(net.bias, bias)


def test_a_function_draws_from_the_seed(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        torch.manual_seed(ord(name))
        fit(recipe(f"seed={seed}"), tmp_path / name, model=make, data=(X, Y))
    found = [weights_of(tmp_path / name) for name in "abc"]
    assert equal(found[0], found[1])
    assert not equal(found[0], found[2])


def test_arrays_alone_and_a_model_alone(tmp_path: Path) -> None:
    """The same as from a file; and with a data set of a name."""
    np.savez(tmp_path / "a.npz", x=X, y=np.searchsorted(["high", "low"], Y))
    typed = ("trainer.max_epochs=2", "model.hidden_sizes=[5]")
    own = fit(compose(*RECIPE, *typed), tmp_path / "own", data=(X, Y))
    file = fit(
        compose(*RECIPE, *typed, "data=npz", f"data.path={tmp_path / 'a.npz'}"), tmp_path / "file"
    )
    assert equal(weights_of(own.folder, None), weights_of(file.folder, None))
    assert own.result["test/loss"] == file.result["test/loss"]
    digits = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    run = fit(recipe("data=digits"), tmp_path / "digits", model=digits)
    assert run.result["data"]["name"] == "digits"
    assert open_trained(run.folder, digits).labels == tuple("0123456789")


@pytest.mark.slow
@pytest.mark.parametrize("given", ["function", "module"])
def test_killed_at_every_checkpoint_it_ends_with_the_same_bits(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = copied(Net())

    def model() -> Any:
        if given == "function":
            return make
        net = Net()
        net.load_state_dict(start)
        return net

    config = recipe("checkpoint.every_n_steps=3", "trainer.steps_per_call=2", epochs=3)
    first, last = model(), model()
    whole = fingerprint(fit(config, tmp_path / "whole", model=first, data=(X, Y)))
    undo = die_after_writing(monkeypatch)
    run, deaths = None, 0
    while run is None:
        try:
            run = fit(config, tmp_path / "killed", model=last, data=(X, Y), resume=True)
        except Killed:
            deaths += 1
    undo()
    assert deaths > 5
    assert fingerprint(run) == whole
    if given == "module":
        assert equal(copied(first), copied(last))


def test_a_finished_run_trains_on(tmp_path: Path) -> None:
    net = Net()
    start = copied(net)
    fit(recipe(), tmp_path / "run", model=net, data=(X, Y))
    fit(recipe(epochs=4), tmp_path / "run", model=net, data=(X, Y), resume=True)
    other = Net()
    other.load_state_dict(start)
    fit(recipe(epochs=4), tmp_path / "whole", model=other, data=(X, Y))
    assert equal(copied(net), copied(other))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"data": (OTHERS, Y)}, "data.digest: it was "),
        ({"data": (X, Y), "test": (X, Y)}, "data.digest: it was "),
        ({"model": plain, "data": (X, Y)}, "model.class_name: it was Net, now Sequential"),
        ({"model": Net}, "data.name: it was arrays"),
        ({"model": None, "data": (X, Y)}, "model.name: it was own, now mlp"),
    ],
)
def test_a_resume_needs_the_same_arrays_and_class(
    changed: dict[str, Any], told: str, tmp_path: Path
) -> None:
    fit(recipe(), tmp_path / "run", model=make, data=(X, Y))
    given = {"model": make, **changed}
    config = recipe("data=toy", epochs=3) if "data" not in changed else recipe(epochs=3)
    if given["model"] is Net:
        given["model"] = lambda: nn.Linear(2, 2)
    before = fingerprint_of_files(tmp_path)
    with pytest.raises(InputError, match=told):
        fit(config, tmp_path / "run", resume=True, **given)
    assert fingerprint_of_files(tmp_path) == before


def fingerprint_of_files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_resume_needs_a_model_of_the_same_sizes(tmp_path: Path) -> None:
    class Sized(nn.Sequential):
        def __init__(self, width: int) -> None:
            super().__init__(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))

    fit(recipe(), tmp_path / "run", model=Sized(8), data=(X, Y))
    wider = Sized(16)
    before = copied(wider)
    with pytest.raises(InputError, match=r"last.ckpt: cannot be resumed \(RuntimeError: "):
        fit(recipe(epochs=3), tmp_path / "run", model=wider, data=(X, Y), resume=True)
    assert equal(copied(wider), before)
    run = fit(recipe(epochs=3), tmp_path / "run", model=Sized(8), data=(X, Y), resume=True)
    assert run.result["epochs"] == 3


def test_the_checkpoint_has_the_whole_digest(tmp_path: Path) -> None:
    fit(recipe(), tmp_path / "run", data=(X, Y))
    own = Given.of(None, (X, Y), None, None)
    assert own.arrays is not None
    assert len(own.arrays.digest) == 64
    assert open_trained(tmp_path / "run").digest == own.arrays.digest


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"test": (X, Y)}, r"validation and test go with data; type data=\(x, y\) too"),
        ({"model": make}, r"cannot take samples of shape \[1,28,28\]"),
        ({"model": Net(3), "data": (X, Y)}, r"^model=Net: cannot take samples of shape \[4\]"),
        ({"model": Net(4, 3), "data": (X, Y)}, "for 2 samples, must give"),
        ({"model": Net, "data": (X, Y[:3])}, r"^data=\(x, y\): y is \(3,\), must be \(200,\)"),
    ],
)
def test_faults_before_anything_is_written(
    given: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=told):
        fit(recipe("data=digits" if "data" not in given else "seed=1"), tmp_path / "run", **given)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("typed", "given", "told"),
    [
        (
            ("data=digits",),
            {"data": (X, Y)},
            r"^data=digits: data=.* was given",
        ),
        (("model=cnn",), {"model": make, "data": (X, Y)}, "^model=cnn: .* was given"),
        (
            ("model.hidden_sizes=[3]",),
            {"model": make, "data": (X, Y)},
            "^model=mlp: .* was given",
        ),
        (("data=arrays",), {}, r"^data=arrays: .* call kindling.fit\(config, data=\(x, y\)\)"),
        (("model=own", "data=toy"), {}, r"^model=own: .* call kindling.fit\(config, model=module"),
    ],
)
def test_a_configuration_may_not_name_others(
    typed: tuple[str, ...], given: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=told):
        fit(recipe(*typed), tmp_path / "run", **given)
    assert not [*tmp_path.iterdir()]


def test_the_settings_of_data_hold_for_arrays(tmp_path: Path) -> None:
    """Those of every data set, and with data=arrays those of arrays."""
    common = ("data.batch_size=7", "data.val_fraction=0.5")
    run = fit(recipe(*common), tmp_path / "a", model=make, data=(X, Y))
    assert (run.config.data.batch_size, run.result["data"]["train"]) == (7, 80)
    typed = ("data=arrays", "data.test_fraction=0.5", "model=own")
    run = fit(recipe(*typed), tmp_path / "b", model=make, data=(X, Y))
    assert run.result["data"]["test"] == 100


class Late(Net):
    """Fails in training, after the first blocks."""

    calls = 0

    def forward(self, features: Tensor) -> Tensor:
        self.calls += 1
        if self.training and self.calls > 10:
            raise KeyError("in my code")
        return super().forward(features)


def test_a_module_that_fails_later_is_unchanged_and_shows_its_own_code(tmp_path: Path) -> None:
    net = Late()
    start = copied(net)
    with pytest.raises(KeyError, match="in my code") as caught:
        kindling.fit(recipe(epochs=9), tmp_path / "run", model=net, data=(X, Y))
    assert equal(copied(net), start)
    files = [str(entry.path) for entry in caught.traceback]
    assert files[-1] == __file__
    assert not [file for file in files[2:] if "/kindling/" in file or "/lightning/" in file]
    with pytest.raises(InputError) as told:
        kindling.fit(recipe(), tmp_path / "other", model=Net(3), data=(X, Y))
    assert len([entry for entry in told.traceback if "/kindling/" in str(entry.path)]) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("model", [Net, Late])
def test_nothing_of_the_program_is_kept(model: Callable[[], nn.Module], tmp_path: Path) -> None:
    net, x = model(), X.copy()
    gone: list[Callable[[], object]] = [weakref.ref(net), weakref.ref(x)]
    try:
        fit(recipe(epochs=9), tmp_path / "run", model=net, data=(x, Y))
    except KeyError:
        assert model is Late
    del net, x
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_tied_and_parametrised_weights(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.again = self.first
            self.last = nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))

        def forward(self, features: Tensor) -> Tensor:
            logits: Tensor = self.last(self.again(torch.relu(self.first(features))))
            return logits

    net = Tied()
    run = fit(recipe(), tmp_path / "run", model=net, data=(X, Y))
    assert run.result["parameters"] == 20 + 2 + 8 + 2
    fit(recipe(epochs=3), tmp_path / "run", model=net, data=(X, Y), resume=True)
    opened = open_trained(tmp_path / "run", Tied()).model
    assert torch.equal(opened(torch.from_numpy(X)), net.eval()(torch.from_numpy(X)))


def test_frozen_weights_stay(tmp_path: Path) -> None:
    """Also of a model of Kindling's own, which the engine would train whole."""
    from kindling.models import build_model

    mlp = build_model(compose("model.hidden_sizes=[8]").model, (4,), 2)
    for net in (Net(), mlp):
        first = next(net.parameters())
        first.requires_grad_(False)
        before = copied(net)
        run = fit(recipe(), tmp_path / type(net).__name__, model=net, data=(X, Y))
        assert run.result["step"] == "autograd"
        assert torch.equal(first, next(iter(before.values())))
        assert not equal(copied(net), before)


def test_other_precisions_and_loaders(tmp_path: Path) -> None:
    settings = (
        ("trainer.precision=64",), ("trainer.precision=bf16-mixed",), ("data.batch_size=auto",),
        ("data.order=stream",), ("data.folds=4", "data.fold=1"), ("trainer.ema_decay=0.9",),
    )  # fmt: skip
    for number, typed in enumerate(settings):
        net = Net()
        run = fit(recipe(*typed, epochs=1), tmp_path / str(number), model=net, data=(X, Y))
        assert run.result["status"] == "finished"
        found = weights_of(run.folder)
        assert all(
            torch.equal(value, found[name].to(value.dtype))
            for name, value in net.state_dict().items()
        )


@pytest.mark.slow
def test_two_ranks_train_the_module_of_the_program(tmp_path: Path) -> None:
    net = plain((4,), 2)
    start = copied(net)
    settings = ("optimizer=sgd", "data.batch_size=20")
    one = fit(recipe(*settings), tmp_path / "one", model=plain((4,), 2), data=(X, Y))
    other = ("trainer.devices=2", "trainer.strategy=ddp", "data.batch_size=10", "optimizer=sgd")
    run = fit(recipe(*other), tmp_path / "two", model=net, data=(X, Y))
    assert (run.result["ranks"], run.result["steps"]) == (2, one.result["steps"])
    assert not equal(copied(net), start)
    assert equal(copied(net), weights_of(tmp_path / "two", plain))
    with pytest.raises(InputError, match=r"^model=.*: cannot go to another process"):
        fit(recipe(*other), tmp_path / "three", model=lambda: Net(4), data=(X, Y))
