"""Predictions averaged over augmented copies: by hand, alone and among others, and refused."""

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.ndimage import map_coordinates

from kindling.config.compose import compose
from kindling.data.augmentation import Augmentation
from kindling.data.sources.source import Split, as_float
from kindling.inference.committees.making import make_committee
from kindling.inference.committees.members import read_request
from kindling.inference.evaluation import (
    calibrate,
    evaluate,
    evaluate_path,
    fit_temperature,
    score,
)
from kindling.inference.inputs import read_copies
from kindling.inference.inputs import read_request as read_predict_request
from kindling.inference.logits import averaging, compute_logits, consult
from kindling.inference.prediction import predict, predict_request
from kindling.inference.samples import source_of, validation_of
from kindling.records.folder import Run
from kindling.records.loading import Trained, open_trained
from kindling.steps.native import NativeModel
from kindling.system.errors import InputError
from kindling.training.fit import fit
from tests.helpers.commands import SMALL, Command, Train, require_told_without_torch
from tests.helpers.drawings import seven

ON = ("augmentation=digits", "augmentation.flip=true")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with augmentation, which tests must not change."""
    folder = tmp_path_factory.mktemp("augmented") / "run"
    return fit(compose(*SMALL, *ON, "model.hidden_sizes=[16]"), folder)


@pytest.fixture(scope="module")
def trained(run: Run) -> Trained:
    return open_trained(run.folder)


def first_tests(trained: Trained, samples: int) -> Split:
    return source_of(trained).test.take(slice(samples))


def deformed(trained: Trained, pictures: np.ndarray[Any, Any], number: int) -> torch.Tensor:
    """Copy `number` of pictures (N, 1, H, W), picture by picture, by scipy in float64."""
    height, width = trained.shape[1:]
    augmentation = Augmentation(trained.config.augmentation, trained.shape, [0], 1)
    [weights] = augmentation.draw(0, 0, number).double().numpy()
    moves = weights * [[width / 2], [height / 2]] @ augmentation.fields.double().numpy()
    x, y = moves[0] + (width - 1) / 2, moves[1] + (height - 1) / 2
    copies = [
        map_coordinates(picture[0], [y, x], order=1, mode="grid-constant") for picture in pictures
    ]
    return torch.tensor(np.stack(copies)).view(-1, *trained.shape)


def mean_by_hand(trained: Trained, pictures: torch.Tensor, copies: int) -> np.ndarray[Any, Any]:
    """The mean of the softmax over pictures (N, 1, H, W) and their copies, in float64."""
    model = trained.model.double()
    doubles = pictures.double()
    versions = [doubles, *(deformed(trained, doubles.numpy(), n) for n in range(copies))]
    with torch.no_grad():
        found: np.ndarray[Any, Any] = np.mean([model(v).softmax(-1).numpy() for v in versions], 0)
    return found


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        ([], 1e-4),
        (["model=logistic_regression", "optimizer.lr=0.1"], 1e-4),
        (["trainer.precision=64", "model.dropout=0.2"], 1e-4),
        (["trainer.precision=bf16-mixed"], 0.02),
    ],
)
def test_the_mean_by_hand(overrides: list[str], error: float, train: Train) -> None:
    folder = train(*ON, *overrides).folder
    trained = open_trained(folder)
    split = first_tests(trained, 12)
    found = compute_logits(averaging(trained, 5), split).softmax(-1).numpy()
    plain = compute_logits(trained, split).double().softmax(-1).numpy()
    expected = mean_by_hand(open_trained(folder), split.features, 5)
    np.testing.assert_allclose(found, expected, atol=error)
    assert np.abs(found - plain).max() > 3 * error


def test_an_augmentation_that_moves_almost_nothing(train: Train) -> None:
    trained = open_trained(train("augmentation.shift=1e-9").folder)
    source = source_of(trained)
    plain, found = evaluate(trained, source), evaluate(averaging(trained, 3), source)
    assert found.loss == pytest.approx(plain.loss, rel=1e-5)
    assert found.confusion.equal(plain.confusion)


def test_a_sample_has_the_same_probabilities_alone_and_among_others(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = first_tests(trained, 30).features.numpy()
    together = predict(trained, pictures, 4)
    np.testing.assert_allclose(together.sum(1), 1)
    alone = np.concatenate([predict(trained, picture[None], 4) for picture in pictures])
    np.testing.assert_allclose(alone, together, rtol=1e-12)
    np.testing.assert_allclose(predict(trained, pictures[::-1], 4), together[::-1], rtol=1e-12)
    monkeypatch.setattr("kindling.inference.logits.CHUNK", 7)
    np.testing.assert_allclose(predict(trained, pictures, 4), together, rtol=1e-12)


def test_bytes_and_their_fractions(trained: Trained) -> None:
    pixels = np.rint(first_tests(trained, 5).features.numpy() * 255).astype(np.uint8)
    before = pixels.copy()
    fractions = pixels.astype(np.float32) / 255
    unchanged = fractions.copy()
    np.testing.assert_allclose(predict(trained, pixels, 3), predict(trained, fractions, 3), 1e-5)
    np.testing.assert_array_equal(pixels, before)
    np.testing.assert_array_equal(fractions, unchanged)


def test_pictures_with_colours_last_in_memory(train: Train) -> None:
    trained = open_trained(
        train(
            "data=synthetic", "data.shape=[3,8,6]", "data.classes=3", "augmentation.shift=1"
        ).folder
    )
    split = first_tests(trained, 5)
    last = split.features.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    found = compute_logits(averaging(trained, 3), Split(last, split.labels))
    torch.testing.assert_close(found, compute_logits(averaging(trained, 3), split))
    model = trained.model
    augmentation = Augmentation(trained.config.augmentation, trained.shape, [0], 1)
    expected = model(split.features).softmax(-1)
    for number in range(3):
        weights = augmentation.draw(0, 0, number).expand(5, -1, -1)
        expected = expected + model(augmentation.sample(split.features, weights)).softmax(-1)
    torch.testing.assert_close(found.exp().float(), expected.detach() / 4, rtol=1e-4, atol=1e-5)


def test_more_copies_begin_with_the_same(trained: Trained) -> None:
    """So figures for 3 and 4 copies differ by a single copy."""
    split = first_tests(trained, 6)
    three, four = (compute_logits(averaging(trained, n), split).exp() * (n + 1) for n in (3, 4))
    copy = split.features.clone()
    copy = deformed(trained, copy.numpy(), 3).float()
    last = trained.model(copy).softmax(-1).detach().double()
    torch.testing.assert_close(four - three, last, rtol=0, atol=1e-4)


def test_each_member_has_its_own_augmentation(run: Run, tmp_path: Path) -> None:
    other = fit(compose(*SMALL, "augmentation.shift=2", "seed=3"), tmp_path / "other")
    request = read_request([run.folder, other.folder], folder=tmp_path / "committee")
    made = make_committee(request)
    committee = open_trained(made.folder)
    split = first_tests(committee, 20)
    each = [
        compute_logits(averaging(open_trained(folder), 3), split).softmax(-1)
        for folder in (run.folder, other.folder)
    ]
    mean = torch.stack(each).mean(0)
    opinions = consult(averaging(committee, 3), split)
    torch.testing.assert_close(opinions.logits.exp(), mean)
    torch.testing.assert_close(compute_logits(averaging(committee, 3), split), opinions.logits)
    bits = [-(p * p.log2()).sum(-1) for p in (mean, *each)]
    torch.testing.assert_close(opinions.disagreement, bits[0] - sum(bits[1:]) / 2)


def test_a_member_without_augmentation(run: Run, tmp_path: Path) -> None:
    """The members are in the checkpoint; the configuration of a committee is that of the first."""
    plain = fit(compose(*SMALL, "trainer.max_epochs=1"), tmp_path / "plain")
    request = read_request([run.folder, plain.folder], folder=tmp_path / "committee")
    committee = make_committee(request)
    assert read_copies(committee.folder, 4) == 4
    trained = open_trained(committee.folder)
    with pytest.raises(InputError, match=r"--augmented 4: member 2 of .* without augmentation"):
        evaluate(averaging(trained, 4), source_of(trained))


def test_the_temperature_is_that_of_the_mean(trained: Trained) -> None:
    source = source_of(trained)
    tested = compute_logits(averaging(trained, 2), source.test)
    found = calibrate(averaging(trained, 2), source, tested, source.test.labels)
    validation = validation_of(trained, source)
    logits = compute_logits(averaging(trained, 2), validation)
    assert found.temperature == fit_temperature(logits, validation.labels)
    assert found.before == score(tested, source.test.labels)
    assert found.before.loss == evaluate(averaging(trained, 2), source).loss


def test_the_evaluation_says_that_copies_were_averaged(run: Run, command: Command) -> None:
    told = evaluate_path(run.folder, None, copies=3, calibrated=True).describe()
    lines = told.splitlines()
    assert lines[1] == "probabilities are means over each sample and 3 augmented copies"
    assert lines[2].startswith("accuracy ")
    assert lines[-3].startswith("mean over copies ")
    done = command("src.evaluate", str(run.folder), "--augmented", "3", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["augmented_copies"] == 3
    trained = open_trained(run.folder)
    source = source_of(trained)
    logits, labels = compute_logits(averaging(trained, 3), source.test), source.test.labels
    assert answer["accuracy"] == (logits.argmax(-1) == labels).double().mean().item()
    probabilities = logits.exp().gather(1, labels[:, None])
    assert answer["loss"] == pytest.approx(-probabilities.log().mean().item(), rel=1e-9)
    plain = evaluate_path(run.folder, None).to_primitives()
    assert plain["augmented_copies"] == 0
    assert plain["loss"] != answer["loss"]


def test_the_prediction_says_that_copies_were_averaged(
    run: Run, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = open_trained(run.folder)
    pictures = first_tests(trained, 3).features.numpy()
    np.savez(tmp_path / "samples.npz", x=pictures)
    seven().save(tmp_path / "seven.png")
    given = ("src.predict", str(run.folder), "seven.png", "samples.npz")
    shown = command(*given, "--augmented", "2", "--csv", "found.csv")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[1] == "probabilities are means over each sample and 2 augmented copies"
    rows = list(csv.DictReader(io.StringIO((tmp_path / "found.csv").read_text())))
    assert [row["augmented_copies"] for row in rows] == ["2"] * 4
    assert list(rows[0])[-2:] == ["augmented_copies", "fault"]
    expected = predict(trained, pictures, 2)
    for row, probabilities in zip(rows[1:], expected, strict=True):
        assert row["class"] == str(probabilities.argmax())
        assert float(row["probability"]) == pytest.approx(probabilities.max(), abs=1e-6)

    def printed(copies: int | None) -> str:
        monkeypatch.chdir(tmp_path)
        paths = [Path("samples.npz")]
        request = read_predict_request(
            run.folder, paths, "auto", "-", force=False, augmented=copies
        )
        return predict_request(request).text

    assert list(csv.DictReader(io.StringIO(printed(2)))) == rows[1:]
    assert "augmented_copies" not in printed(None)


@pytest.mark.slow
def test_refusals_cost_no_torch(run: Run, train: Train, tmp_path: Path) -> None:
    toy, plain = str(train("data=toy").folder), str(train().folder)
    seven().save(tmp_path / "seven.png")
    ranges = "type a number from 1 to 1000"
    none = "was trained without augmentation; train with, for example, augmentation=digits or"
    faults: dict[tuple[str, ...], str] = {
        (str(run.folder), "--augmented", "0"): f"error: --augmented 0: {ranges}\n",
        (str(run.folder), "--augmented", "-1"): f"error: --augmented -1: {ranges}\n",
        (str(run.folder), "--augmented", "1001"): f"error: --augmented 1001: {ranges}\n",
        (plain, "--augmented", "5"): f"error: --augmented 5: {plain} {none}",
        (toy, "--augmented", "5"): f"{toy} takes samples of data=toy that are not pictures, and",
    }
    require_told_without_torch("evaluate", faults)
    picture = str(tmp_path / "seven.png")
    told: dict[tuple[str, ...], str] = {
        (first, picture, *rest): text for (first, *rest), text in faults.items()
    }
    require_told_without_torch("predict", told)


def test_refusals_of_models(train: Train, tmp_path: Path) -> None:
    """The configuration of a checkpoint file, and the shape of own arrays, are known later."""
    plain = train()
    assert read_copies(plain.best_checkpoint, 5) == 5
    trained = open_trained(plain.best_checkpoint)
    pictures = np.zeros((2, 28, 28), np.uint8)
    with pytest.raises(InputError, match=r"best\.ckpt was trained without augmentation"):
        predict(trained, pictures, 5)
    np.savez(tmp_path / "own.npz", x=np.random.default_rng(0).random((40, 4)), y=np.arange(40) % 2)
    own = train("data=npz", f"data.path={tmp_path / 'own.npz'}")
    assert read_copies(own.folder, 5) == 5
    with pytest.raises(InputError, match="samples of data=npz that are not pictures"):
        predict(open_trained(own.folder), np.zeros((2, 4), np.float32), 5)
    with pytest.raises(InputError, match="--augmented 1001: type a number from 1 to 1000"):
        predict(trained, pictures, 1001)
    assert read_copies(plain.folder, None) == 0


def test_probabilities_that_underflow(trained: Trained) -> None:
    """A class with a probability below the smallest float64 has a finite logarithm."""
    split = first_tests(trained, 2)
    with torch.no_grad():
        *_, bias = trained.model.parameters()
        kept = bias.clone()
        bias[0] = -1e4
        found = compute_logits(averaging(trained, 2), split)
        bias.copy_(kept)
    assert found.isfinite().all()
    assert math.isclose(found[0].exp().sum(), 1, rel_tol=1e-9)


def by_torch(model: torch.nn.Module, features: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        outputs: torch.Tensor = model(as_float(features))
    return outputs.double()


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer.weight.data.mul_(2),
        lambda layer: torch.nn.init.zeros_(layer.weight),
        lambda layer: layer.load_state_dict({k: v + 1 for k, v in layer.state_dict().items()}),
        lambda layer: setattr(layer, "weight", torch.nn.Parameter(layer.weight * 3)),
        lambda layer: setattr(layer, "bias", torch.nn.Parameter(layer.bias - 1)),
    ],
)
def test_logits_are_those_of_the_weights_of_the_moment(change: Any, run: Run) -> None:
    """The engine computes with a copy, which it keeps from call to call."""
    trained = open_trained(run.folder)
    split = first_tests(trained, 30)
    before = compute_logits(trained, split).double()
    assert torch.allclose(before, by_torch(trained.model, split.features), atol=1e-4)
    layer = [m for m in trained.model.modules() if isinstance(m, torch.nn.Linear)][-1]
    change(layer)
    after = compute_logits(trained, split).double()
    assert torch.allclose(after, by_torch(trained.model, split.features), atol=1e-4)
    assert not torch.allclose(after, before, atol=1e-2)
    other = open_trained(run.folder)  # another model has weights of its own
    assert compute_logits(other, split).double().equal(before)


@pytest.mark.parametrize("count", [1, 999, 1000, 1001, 7999, 8001, 65_000])
def test_many_samples_have_the_logits_of_each(count: int, trained: Trained) -> None:
    """By several threads from 8,000 on, and by several calls from 64,000 on."""
    few = first_tests(trained, 50)
    places = torch.arange(count) % 50
    whole = compute_logits(trained, few.take(places))
    assert whole.equal(compute_logits(trained, few)[places])


@pytest.mark.parametrize("count", [3999, 4001, 31_999, 32_001, 70_000])
def test_a_small_network_takes_more_samples_at_once(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fit(compose("data=toy", "trainer.max_epochs=1"), tmp_path / "toy")
    trained = open_trained(run.folder)
    features = torch.randn(count, *trained.shape, generator=torch.Generator().manual_seed(0))
    split, sizes = Split(features, torch.zeros(count, dtype=torch.int64)), list[int]()
    of_engine = NativeModel.logits

    def logits(model: NativeModel, *given: torch.Tensor) -> torch.Tensor:
        sizes.append(len(given[0]))
        return of_engine(model, *given)

    monkeypatch.setattr(NativeModel, "logits", logits)
    whole = compute_logits(trained, split)
    assert max(sizes) == (4000 if count >= 32_000 else 1000)
    assert sum(sizes) == count
    apart = [compute_logits(trained, split.take(slice(n, n + 700))) for n in range(0, count, 700)]
    assert whole.equal(torch.cat(apart))


def test_a_layer_may_be_replaced_by_one_of_another_size(run: Run) -> None:
    trained = open_trained(run.folder)
    split = first_tests(trained, 30)
    assert compute_logits(trained, split).shape == (30, 10)
    for name, module in trained.model.named_children():
        if isinstance(module, torch.nn.Sequential):
            module[-1] = torch.nn.Linear(16, 12)
            assert name == "layers"
    found = compute_logits(trained, split).double()
    assert found.shape == (30, 12)
    assert torch.allclose(found, by_torch(trained.model, split.features), atol=1e-4)
