"""Augmentation: its geometry against slower formulas, its random numbers, and its independence of
blocks, devices and ranks."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.ndimage import affine_transform, gaussian_filter, map_coordinates
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import affine

from benchmarks.crashes import fingerprint
from kindling.config import schema
from kindling.config.compose import compose
from kindling.config.schema import Config
from kindling.data.augmentation import Augmentation, build_augmentation, inverse_maps, smooth_fields
from kindling.data.loader import Batch, Block, BlockSampler
from kindling.data.sources.digits import digits
from kindling.data.sources.source import Source, Split
from kindling.records.folder import Run
from kindling.sweeps.command_line import check_command_line
from kindling.system.errors import InputError
from kindling.training.fit import fit, fit_stack
from kindling.training.grouping import group_trials
from kindling.training.module import StackModule
from tests.helpers.commands import SMALL
from tests.helpers.faults import faults
from tests.helpers.kills import Killed, die_after_writing
from tests.helpers.weights import weights

ON = ("augmentation=digits", "augmentation.flip=true")
OFF = dict.fromkeys(("shift", "rotate", "scale", "shear", "elastic"), 0.0)


def section(**values: float | bool) -> schema.Augmentation:
    return schema.Augmentation.model_validate(
        OFF | {"flip": False, "elastic_sigma": 5.5} | dict(values)
    )


def build(
    *, shape: tuple[int, ...] = (1, 28, 28), batch: int = 100, world_size: int = 1, **values: float
) -> Augmentation:
    return Augmentation(section(**values), shape, [0], batch, world_size)


def moved(
    pictures: Tensor,
    *,
    shift: tuple[float, float] = (0, 0),
    angle: float = 0,
    scale: tuple[float, float] = (1, 1),
    shear: float = 0,
) -> Tensor:
    """Pictures (B, C, H, W), each moved by the map of these numbers."""
    maps = inverse_maps(
        shift=np.array([shift]).T,
        angle=np.array([angle]),
        scale=np.array([scale]).T,
        shear=np.array([shear]),
    )
    augmentation = build(shape=tuple(pictures.shape[1:]), shift=1.0)
    coefficients = torch.from_numpy(maps).float() * augmentation.to_grid
    return augmentation.sample(pictures, coefficients.expand(len(pictures), 2, 3))


def augmented(augmentation: Augmentation, block: Block, *place: int) -> Tensor:
    """The augmented copy of a block."""
    features = block.features.clone()
    augmentation(Block(features, block.labels), *place)
    return features


def noise(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


# --- geometry ---


def test_one_pixel_moves_one_pixel() -> None:
    """To the right and down; pixels from outside are zero."""
    picture = noise(1, 2, 6, 9)
    found = moved(picture, shift=(1, 0))
    assert torch.allclose(found[..., 1:], picture[..., :-1], atol=1e-6)
    assert found[..., 0].abs().max() < 1e-6
    found = moved(picture, shift=(0, -2))
    assert torch.allclose(found[..., :-2, :], picture[..., 2:, :], atol=1e-6)
    assert found[..., -2:, :].abs().max() < 1e-6


def test_half_a_pixel_is_shared_by_two() -> None:
    picture = torch.zeros(1, 1, 5, 5)
    picture[..., 2, 2] = 1
    expected = torch.zeros(5, 5)
    expected[2, 2:4] = 0.5
    assert torch.allclose(moved(picture, shift=(0.5, 0))[0, 0], expected, atol=1e-6)


@pytest.mark.parametrize("size", [7, 8])
def test_a_quarter_turn_is_rot90(size: int) -> None:
    """Clockwise, as torchvision's angle."""
    picture = noise(2, 1, size, size)
    expected = torch.rot90(picture, -1, (2, 3))
    assert torch.allclose(moved(picture, angle=90), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("shift", "angle", "scale", "shear"),
    [
        ((3, -2), 0, 1, 0),
        ((0, 0), 25, 1, 0),
        ((0, 0), -25, 1, 0),
        ((0, 0), 0, 1.3, 0),
        ((0, 0), 0, 0.7, 0),
        ((0, 0), 0, 1, 20),
        ((2, 1), 12, 0.85, -15),
    ],
)
def test_affine_maps_are_torchvisions(
    shift: tuple[int, int], angle: float, scale: float, shear: float
) -> None:
    picture = noise(1, 3, 20, 28)
    found = moved(picture, shift=shift, angle=angle, scale=(scale, scale), shear=shear)
    bilinear = InterpolationMode.BILINEAR
    expected = affine(picture, angle, list(shift), scale, [shear, 0.0], interpolation=bilinear)
    assert torch.allclose(found, expected, atol=1e-4)


def test_width_and_height_are_scaled_each() -> None:
    """Against SciPy, whose maps also go from the new to the old picture, rows first."""
    picture = noise(1, 1, 11, 15)
    centre, factors = np.array([5.0, 7.0]), np.array([1 / 0.8, 1 / 1.25])
    expected = affine_transform(
        picture[0, 0].numpy(), factors, centre - factors * centre, order=1, mode="grid-constant"
    )
    found = moved(picture, scale=(1.25, 0.8))[0, 0].numpy()
    assert np.allclose(found, expected, atol=1e-5)


def test_a_displacement_is_added_to_the_map() -> None:
    """A whole batch of draws, against SciPy's interpolation at the drawn places."""
    augmentation = build(batch=3, shift=2.0, rotate=20.0, scale=0.2, shear=10.0, elastic=1.5)
    pictures = noise(3, 1, 28, 28)
    coefficients = augmentation.draw(0, 0, 0)
    found = augmentation.sample(pictures, coefficients)
    places = 14 * torch.einsum("naf,fp->nap", coefficients, augmentation.fields) + 13.5
    for number, (x, y) in enumerate(places.numpy()):
        expected = map_coordinates(
            pictures[number, 0].numpy(), [y, x], order=1, mode="grid-constant"
        )
        assert np.allclose(found[number, 0].numpy().ravel(), expected, atol=1e-4)


# --- the smooth displacement ---


@pytest.mark.parametrize("sigma", [3.0, 5.5])
def test_a_smooth_field_has_the_correlation_of_simards(sigma: float) -> None:
    fields = smooth_fields(28, 24, sigma)
    covariance = fields.T @ fields
    y, x = np.mgrid[:28, :24].reshape(2, -1)
    squares = (x[:, None] - x) ** 2 + (y[:, None] - y) ** 2
    assert np.allclose(np.diag(covariance), 1)
    assert np.abs(covariance - np.exp(-squares / (4 * sigma**2))).max() < 0.01
    assert len(fields) < 80


def test_fields_that_memory_cannot_hold() -> None:
    """A checkpoint may name any size of pictures, and a configuration any smoothness."""
    with pytest.raises(InputError, match=r"of 1 × 2000000 pixels needs .* MiB of memory, but only"):
        smooth_fields(1, 2_000_000, 5.5)
    with pytest.raises(InputError, match=r"elastic_sigma=0\.01 for pictures of 500 × 500 pixels"):
        smooth_fields(500, 500, 0.01)


def test_simards_own_recipe_has_that_strength() -> None:
    """The deviation and correlation of a smoothed random number for each pixel, in the middle."""
    sigma, alpha = 4.0, 34.0
    stream = np.random.default_rng(0)
    white = stream.uniform(-1, 1, (40, 128, 128))
    theirs = alpha * gaussian_filter(white, (0, sigma, sigma), mode="wrap")
    assert theirs.std() == pytest.approx(alpha / (2 * sigma * math.sqrt(3 * math.pi)), rel=0.02)
    correlation = (theirs[:, 5:] * theirs[:, :-5]).mean() / theirs.var()
    assert correlation == pytest.approx(math.exp(-25 / (4 * sigma**2)), abs=0.02)


def test_the_displacement_is_in_pixels() -> None:
    augmentation = build(batch=4000, shape=(1, 20, 28), elastic=1.5, elastic_sigma=4.0)
    found = augmentation.draw(0, 0, 0)[:, :, 3:] @ augmentation.fields[3:]
    pixels = found / augmentation.to_grid
    assert pixels.std((0, 2)).tolist() == pytest.approx([1.5, 1.5], rel=0.02)
    assert pixels.mean().abs() < 0.02
    assert (pixels[:, 0] * pixels[:, 1]).mean().abs() < 0.03  # x and y are independent


# --- ranges ---


def _of(uniform: float, **values: Any) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    augmentation = build(**values)
    found = augmentation._affine_maps(np.full((7, 1), uniform), 1.0)[0]
    return np.asarray(found, dtype=np.float64)


def test_ranges_lie_around_no_change() -> None:
    """The least, middle and greatest random numbers give -width, no change and +width."""
    identity = np.eye(2, 3)
    middle = _of(0.5, shift=3.0, rotate=30.0, scale=0.2, shear=10.0)
    assert np.allclose(middle, identity, atol=1e-12)
    for uniform, sign in ((0.0, -1), (1.0, 1)):
        assert np.allclose(_of(uniform, shift=3.0)[:, 2], -3 * sign)
        assert _of(uniform, rotate=30.0)[0, 1] == pytest.approx(sign * 0.5)
        assert np.allclose(_of(uniform, scale=0.2).diagonal(), 1 / (1 + 0.2 * sign))
        assert _of(uniform, shear=45.0)[0, 1] == pytest.approx(sign)


def test_draws_fill_their_ranges() -> None:
    """Only a shift, so that the drawn number can be read from the map."""
    augmentation = build(batch=4000, shift=3.0)
    shifts = augmentation.draw(0, 0, 0)[:, :, 2] / augmentation.to_grid.T
    assert shifts.abs().max() <= 3
    assert shifts.std(0).tolist() == pytest.approx([3 / math.sqrt(3)] * 2, rel=0.03)
    assert shifts.mean().abs() < 0.05


def test_every_second_picture_is_flipped() -> None:
    pictures = noise(1000, 3, 4, 5)
    block = Block(pictures[None, None], torch.zeros(1, 1, 1000))
    found = augmented(build(shape=(3, 4, 5), batch=1000, flip=True), block, 0, 0)[0, 0]
    unchanged = torch.isclose(found, pictures, atol=1e-5).flatten(1).all(1)
    flipped = torch.isclose(found, pictures.flip(3), atol=1e-5).flatten(1).all(1)
    assert (unchanged ^ flipped).all()
    assert 450 < int(flipped.sum()) < 550


# --- the numbers ---


def test_numbers_are_a_function_of_seed_epoch_and_batch() -> None:
    augmentation = build(elastic=1.0, shift=1.0)
    state = torch.get_rng_state()
    assert torch.equal(augmentation.draw(3, 2, 1), build(elastic=1.0, shift=1.0).draw(3, 2, 1))
    places = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0)]
    drawn = [augmentation.draw(*place)[:, :, 2:] for place in places]  # neither turned nor scaled
    for number, one in enumerate(drawn):
        for other in drawn[:number]:
            assert (one == other).float().mean() < 0.01
    assert torch.equal(torch.get_rng_state(), state)


def test_a_run_of_precision_64_sees_the_same_pictures() -> None:
    single = build(shift=2, rotate=10, elastic=1)
    expected = single.draw(3, 1, 4)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # as Lightning does around each step
    try:
        assert torch.equal(single.draw(3, 1, 4), expected)
    finally:
        torch.set_default_dtype(before)


def test_a_block_is_its_batches() -> None:
    """For any size and any first batch; each order has its own seed."""
    augmentation = Augmentation(section(elastic=1.0, shift=2.0), (1, 12, 12), [4, 9], 5)
    block = Block(noise(3, 2, 5, 1, 12, 12), torch.zeros(3, 2, 5))
    whole = augmented(augmentation, block, 2, 7)
    for number in range(3):
        part = Block(block.features[number : number + 1], block.labels[:1])
        assert torch.equal(augmented(augmentation, part, 2, 7 + number)[0], whole[number])
    for order, seed in enumerate([4, 9]):
        alone = Augmentation(section(elastic=1.0, shift=2.0), (1, 12, 12), [seed], 5)
        part = Block(block.features[:, order : order + 1], block.labels[:, :1])
        assert torch.equal(augmented(alone, part, 2, 7)[:, 0], whole[:, order])


def test_annealed_changes_are_weaker_changes() -> None:
    """In the second half of eight epochs; each is that of a configuration with smaller values."""
    values = {"shift": 2.0, "rotate": 20.0, "scale": 0.2, "shear": 10.0, "elastic": 1.5}
    block = Block(noise(2, 1, 5, 1, 12, 12), torch.zeros(2, 1, 5))
    annealed = section(**values, flip=True, anneal=0.5)
    ours = Augmentation(annealed, (1, 12, 12), [3], 5, 1, 8)
    for epoch, strength in enumerate([1, 1, 1, 1, 1, 0.75, 0.5, 0.25]):
        weaker = section(**{name: strength * value for name, value in values.items()}, flip=True)
        expected = augmented(Augmentation(weaker, (1, 12, 12), [3], 5), block, epoch, 4)
        assert torch.allclose(augmented(ours, block, epoch, 4), expected, atol=1e-5)
    whole = Augmentation(section(**values, anneal=1.0), (1, 12, 12), [3], 5, 1, 2)
    assert [whole.strength(epoch) for epoch in (0, 1)] == [1.0, 0.5]
    short = Augmentation(section(**values, anneal=0.1), (1, 12, 12), [3], 5, 1, 10)
    assert {short.strength(epoch) for epoch in range(10)} == {1.0}


def test_a_run_anneals_over_its_own_epochs(tmp_path: Path) -> None:
    """The first epoch of two is as strong as ever, the last one is not."""
    common = (*SMALL, "augmentation=digits", "trainer.max_epochs=2", "scheduler=none")
    plain, annealed = (
        fit(compose(*common, f"augmentation.anneal={share}"), tmp_path / str(share))
        for share in (0.0, 1.0)
    )
    losses = [[float(row["train/loss"] or 0) for row in r.history] for r in (plain, annealed)]
    assert losses[0][1] == losses[1][1]
    assert losses[0][2] > losses[1][2]


def test_a_smaller_last_batch_takes_the_first_numbers() -> None:
    augmentation = build(batch=10, elastic=1.0)
    block = Block(noise(1, 1, 10, 1, 28, 28), torch.zeros(1, 1, 10))
    last = Block(block.features[:, :, :3], block.labels[:, :, :3])
    whole = augmented(augmentation, block, 0, 5)
    assert torch.allclose(augmented(augmentation, last, 0, 5), whole[:, :, :3], atol=1e-6)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_see_what_one_sees(ranks: int) -> None:
    """Each sample, through the sampler that makes the batches of a run."""
    pictures, samples, batch = noise(36, 1, 12, 12), 36, 2

    def seen(ranks: int, rank: int, batch: int) -> dict[int, Tensor]:
        augmentation = build(
            shape=(1, 12, 12), batch=batch, world_size=ranks, elastic=1.0, rotate=30.0, shift=1.0
        )
        found: dict[int, Tensor] = {}
        first = 0
        for indices in BlockSampler(samples, [backwards], batch, 2, rank=rank, world_size=ranks):
            block = Block(pictures[indices], indices)
            augmentation(block, 3, first, rank)
            first += len(indices)
            chosen = zip(indices.flatten().tolist(), block.features.flatten(0, 2), strict=True)
            found.update(chosen)
        return found

    one = seen(1, 0, batch * ranks)
    many = {k: v for rank in range(ranks) for k, v in seen(ranks, rank, batch).items()}
    assert sorted(many) == sorted(one) == list(range(samples))
    for index, picture in many.items():
        assert torch.allclose(picture, one[index], atol=1e-5)


def backwards(epoch: int, samples: int) -> Tensor:
    return torch.arange(samples).flip(0)


def test_float64_pictures_stay_float64() -> None:
    block = Block(noise(1, 1, 4, 1, 28, 28).double(), torch.zeros(1, 1, 4))
    augmentation = build(batch=4, shift=2.0, elastic=1.0)
    single = Block(block.features.float(), block.labels)
    assert torch.allclose(
        augmented(augmentation, block, 0, 0),
        augmented(augmentation, single, 0, 0).double(),
        atol=1e-4,
    )


def test_lower_precision_places_pixels_all_the_same() -> None:
    augmentation, block = build(batch=4, rotate=9.0), noise(1, 1, 4, 1, 28, 28)
    expected = augmented(augmentation, Block(block, block), 0, 0)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(augmented(augmentation, Block(block, block), 0, 0), expected)


# --- in a run ---


def test_without_changes_there_is_no_augmentation() -> None:
    config = compose("augmentation=none", "augmentation.elastic_sigma=3")
    assert build_augmentation(config.augmentation, digits(), [0], 100, 1) is None
    assert schema.AUGMENTATIONS[-1] == "own"  # needs an extension: tests/config/test_registry.py
    for name in schema.AUGMENTATIONS[:-1]:
        on = section(**{name: True if name == "flip" else 0.5})
        assert on.chosen == [name]
        assert build_augmentation(on, digits(), [0], 100, 1) is not None


def test_only_training_batches_are_augmented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training batches are augmented with the run's seed, evaluation batches not at all."""
    config = compose(*SMALL, *ON, "trainer.max_epochs=1", "seed=3")
    own = build_augmentation(config.augmentation, digits(), [3], config.data.batch, 1)
    assert own is not None
    trained: list[Tensor] = []
    evaluated: list[Tensor] = []
    step, evaluate = StackModule.training_step, StackModule.validation_step

    def training_step(self: StackModule, block: Block) -> dict[str, Tensor]:
        expected = augmented(own, block, self.current_epoch, self.batches_done)
        assert not torch.equal(expected, block.features)
        found = step(self, block)
        assert torch.equal(block.features, expected)
        trained.append(expected)
        return found

    def evaluation_step(self: StackModule, batch: Batch) -> None:
        evaluated.append(batch.features)
        evaluate(self, batch)

    monkeypatch.setattr(StackModule, "training_step", training_step)
    for name in ("validation_step", "test_step"):
        monkeypatch.setattr(StackModule, name, evaluation_step)
    run = fit(config, tmp_path / "run")
    assert sum(part.shape[0] * part.shape[2] for part in trained) >= 1150
    assert torch.equal(evaluated[-1], digits().test.features)
    assert torch.equal(evaluated[0], evaluated[1])  # validation before and after the epoch
    assert run.result["status"] == "finished"


@pytest.mark.parametrize(
    "other",
    [("trainer.steps_per_call=1",), ("data.loader=workers", "data.num_workers=1")],
    ids=["1", "workers"],
)
def test_the_result_is_the_same_however_blocks_come(other: tuple[str, ...], tmp_path: Path) -> None:
    base = (*SMALL, *ON, "trainer.max_epochs=1")
    a = weights(fit(compose(*base), tmp_path / "auto"))
    b = weights(fit(compose(*base, *other), tmp_path / "other"))
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    "recipe",
    [(), ("data.order=stream", "data.loader=workers", "trainer.step=autograd")],
    ids=["resident", "stream, workers, autograd"],
)
def test_killed_within_an_epoch(
    recipe: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fine = ("trainer.steps_per_call=2", "checkpoint.every_n_steps=6")
    config = compose(*SMALL, *ON, *fine, *recipe)
    whole = fit(config, tmp_path / "whole")
    die_after_writing(monkeypatch)
    run, deaths = Run(tmp_path / "killed"), 0
    while not run.result:
        try:
            fit(config, run.folder, resume=True)
        except Killed:
            deaths += 1
    assert deaths == 4
    assert fingerprint(run) == fingerprint(whole)


def _points() -> list[Config]:
    base = (*SMALL, *ON, "model.hidden_sizes=16")
    return [
        compose(*base, f"optimizer.lr={rate}", f"seed={seed}")
        for rate in (0.05, 0.1)
        for seed in (0, 1)
    ]


def test_a_trial_of_a_stack_is_its_single_run(tmp_path: Path) -> None:
    configs = _points()
    folders = [tmp_path / str(number) for number in range(4)]
    for config, run in zip(configs, fit_stack(configs, folders, tmp_path / "stack"), strict=True):
        alone = fit(config, tmp_path / "alone" / run.folder.name)
        a, b = weights(run), weights(alone)
        assert run.result["stacked"] == 4
        for name, value in b.items():
            assert (a[name] - value).abs().max() < 1e-4 * value.abs().max(), name


def test_trials_with_the_same_augmentation_share_a_stack() -> None:
    plain = [compose(*SMALL, f"optimizer.lr={rate}") for rate in (0.05, 0.1)]
    groups = group_trials([*_points(), *plain])
    assert [group.trials for group in groups] == [[0, 1, 2, 3], [4, 5]]


# --- faults ---


@pytest.mark.parametrize(
    ("overrides", "answer"),
    [
        (["augmentation.shift=-1"], "greater than or equal to 0, for example augmentation.shift=1"),
        (["augmentation.rotate=181"], "augmentation.rotate=181: must be less than or equal to 180"),
        (["augmentation.scale=1"], "augmentation.scale=1: must be less than 1"),
        (["augmentation.shear=90"], "augmentation.shear=90: must be less than 90"),
        (["augmentation.elastic=inf"], "augmentation.elastic=inf: must be a finite number"),
        (["augmentation.elastic_sigma=0"], "greater than 0, for example augmentation.elastic_sig"),
        (["augmentation.flip=2"], "must be a valid boolean"),
        (["augmentation.rotation=5"], "unknown key; did you mean augmentation.rotate?"),
        (["augmentation=digit"], "must be one of digits, none; did you mean digits?"),
        (
            ["augmentation=digits", "data=toy"],
            "augmentation.shift=1.0 changes pictures, and data=toy has samples of shape [2], not "
            "[channels,height,width]; type augmentation=none",
        ),
        (
            ["augmentation.flip=true", "data=synthetic"],
            "augmentation.flip=true changes pictures, and data=synthetic has samples of shape [784",
        ),
    ],
)
def test_faults_are_reported_before_anything_starts(overrides: list[str], answer: str) -> None:
    assert answer in faults(*overrides)


def test_samples_of_three_dimensions_can_be_augmented() -> None:
    check_command_line(["augmentation=digits", "data=synthetic", "data.shape=[3,8,8]"])


def test_data_without_pictures_are_named(tmp_path: Path) -> None:
    table = Split(torch.zeros(4, 30), torch.zeros(4, dtype=torch.long))
    with pytest.raises(InputError) as caught:
        build_augmentation(
            section(rotate=5.0), Source("iris", table, table, ("a", "b", "c")), [0], 2, 1
        )
    assert str(caught.value) == (
        "augmentation.rotate=5.0 changes pictures, and data=iris has samples of shape [30], not "
        "[channels,height,width]; type augmentation=none"
    )
