"""Each sentence about a sweep or a run: on results that deserve it, and on results that do not."""

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from kindling.records.folder import Result, Run
from kindling.records.sweep_folder import KeyImportance
from kindling.reports.collect import Part, Reported
from kindling.reports.words import Sentence, sentences
from kindling.system.installation import as_command
from tests.helpers.commands import Command

SHARE = 0.12  # of the most frequent class


def trial(number: int, value: float | None, settings: dict[str, str], **more: Any) -> Reported:
    """With the validation accuracy `value` on 400 samples; without one, it diverged."""
    data = {"name": "digits", "val": 400, "test": 500}
    shares = {"val_most_frequent_class": SHARE, "test_most_frequent_class": SHARE}
    result: Any = {
        "status": "diverged" if value is None else "finished",
        "best": {"val/acc": value},
        "data": data | shares,
        "parameters": 100 * (1 + number),
    }
    result |= more
    history: Any = [
        {"epoch": n, "val/loss": loss} for n, loss in enumerate(result.pop("losses", []))
    ]
    folder = Path(f"sweeps/mine/{number}")
    known: Result = result
    return Reported(Run(folder), known, settings, settings, history, str(folder), "")


def sweep(values: Mapping[Any, Sequence[float | None]], *keys: str, **more: Any) -> Part:
    """A trial for each seed of each setting."""
    places = itertools.count()
    trials = [
        trial(
            next(places), value, dict(zip(keys, setting, strict=True)) | {"seed": str(seed)}, **more
        )
        for setting, of_setting in values.items()
        for seed, value in enumerate(of_setting)
    ]
    several = max(map(len, values.values())) > 1
    return Part(Path("sweeps/mine"), "mine", trials, [*keys, *["seed"] * several])


def told(part: Part) -> list[str]:
    return [sentence.text for sentence in sentences(part)]


def test_the_best_setting_with_its_interval() -> None:
    values = {("0.1",): [0.9, 0.92, 0.94], ("0.2",): [0.5, 0.52, 0.51]}
    low, high = stats.t.interval(0.95, 2, 0.92, stats.sem([0.9, 0.92, 0.94]))
    assert told(sweep(values, "lr")) == [
        "The best of 2 settings is lr=0.1: a mean val/acc of 92.00% over 3 trials "
        f"(95% interval {low:.2%} to {high:.2%})",
        "By 3 trials each, the others are worse, beyond chance. Fewer than 5 trials may deceive; "
        "train the best with fresh seeds",
    ]
    (only, *_) = told(sweep({(): [0.9, 0.92]}))
    assert only.startswith(
        "The only setting has a mean val/acc of 91.00% over 2 trials (95% interval"
    )
    (first, *_) = told(sweep({("0.1",): [0.9], ("0.2",): [0.5]}, "lr"))
    assert first == "The best of 2 settings is lr=0.1: a val/acc of 90.00%, from one trial"


def test_single_trials_are_told_apart_by_the_number_of_validation_samples() -> None:
    """Two shares of 400 samples around 90% differ by up to 4.2 points by chance."""

    def chance(other: float) -> float:
        return 1.96 * math.sqrt((0.9 * 0.1 + other * (1 - other)) / 400)

    near, far = (
        next(x / 1e5 for x in range(90_000, 0, -1) if 0.9 - x / 1e5 >= share * chance(x / 1e5))
        for share in (0.99, 1.01)
    )
    values = {("a",): [near], ("b",): [0.9], ("c",): [far]}
    (sentence,) = [s for s in sentences(sweep(values, "name")) if "told apart" in s.text]
    assert sentence.text == (
        "1 other cannot be told apart from it by 400 validation samples and one trial each: "
        "name=a. The smallest of them all is name=a, with 100 parameters. To find out which is "
        "best, train them with fresh seeds"
    )
    assert sentence.command == "python -m src.confirm sweeps/mine"
    alone = sweep({("b",): [0.9], ("c",): [far]}, "name")
    assert not [text for text in told(alone) if "told apart" in text]
    unknown = sweep(values, "name", data={"name": "digits"})
    assert len(told(unknown)) == 1  # the number of samples is unknown, so nothing is claimed


def test_equal_trials_are_one_setting() -> None:
    """A search may draw the same settings again, also with the same seed."""
    drawn = [trial(number, 0.9, {"lr": "0.1", "seed": "0"}) for number in range(3)]
    same = Part(Path("sweeps/mine"), "mine", drawn, [])
    assert told(same) == ["The only setting has a val/acc of 90.00%, from one trial"]
    drawn += [trial(3, 0.1, {"lr": "0.2", "seed": "0"})]
    (best,) = told(Part(Path("sweeps/mine"), "mine", drawn, ["lr"]))
    assert best == "The best of 2 settings is lr=0.1: a val/acc of 90.00%, from one trial"
    drawn += [trial(4, 0.5, {"lr": "0.1", "seed": "1"})]
    (first, *_) = told(Part(Path("sweeps/mine"), "mine", drawn, ["lr", "seed"]))
    assert "a mean val/acc of 70.00% over 2 trials" in first


@pytest.mark.parametrize("seed", range(5))
def test_seeds_tell_settings_apart_as_students_test_does(seed: int) -> None:
    """With the variance from the best to the compared setting, and Holm's correction, written out
    with NumPy."""
    draw = np.random.default_rng(seed)
    centres = [0.9, *draw.uniform(0.8, 0.9, 6)]
    samples = [(centre + draw.normal(0, 0.01, 4)).tolist() for centre in centres]
    samples.sort(key=lambda each: -sum(each))
    values = {(f"n{place}",): each for place, each in enumerate(samples)}
    variances = [np.mean([np.var(s, ddof=1) for s in samples[:k]]) for k in range(2, 8)]
    t = [
        (np.mean(samples[0]) - np.mean(each)) / math.sqrt(variance / 2)
        for each, variance in zip(samples[1:], variances, strict=True)
    ]
    p = 2 * stats.t.sf(np.abs(t), 3 * np.arange(2, 8))
    order = np.argsort(p)
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(1, np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p)))))
    expected = [f"name=n{place + 1}" for place in range(6) if corrected[place] > 0.05]
    (text,) = [text for text in told(sweep(values, "name")) if "apart" in text or "beyond" in text]
    for place in range(1, 7):
        name = f"name=n{place}"
        assert (f"{name};" in text or f"{name}." in text) == (name in expected[:3])
    by = "By 4 trials each, the others are worse"
    assert text.startswith(f"{len(expected)} other" if expected else by)


def test_a_setting_whose_seeds_failed_hides_no_difference_between_others() -> None:
    """Its variance is none of theirs. Its own mean is far enough away, whatever its variance."""
    clear: dict[tuple[str, ...], Sequence[float | None]] = {
        ("a",): [0.969, 0.970, 0.968], ("b",): [0.950, 0.951, 0.949], ("c",): [0.94, 0.2, 0.1],
    }  # fmt: skip
    (text,) = [text for text in told(sweep(clear, "name")) if "apart" in text or "beyond" in text]
    assert "name=b" not in text
    rising = [[0.94, 0.2, 0.1], [0.90, 0.91, 0.905], [0.95, 0.951, 0.949], [0.969, 0.97, 0.968]]
    edge = told(sweep({(str(n),): each for n, each in enumerate(rising, 1)}, "width"))
    assert any("width is best at the largest value that was tried, 4" in text for text in edge)


def test_of_many_settings_some_differ_by_chance() -> None:
    """Each of ten is worse with p = 0.03, which ten comparisons bring about by chance."""
    deviation, count = 0.01, 4
    noise = deviation * np.array([-1.0, 1, -1, 1]) / np.std([-1, 1, -1, 1], ddof=1)
    values: dict[tuple[str, ...], Sequence[float | None]] = {("best",): (0.9 + noise).tolist()}
    for place in range(10):
        freedom = (place + 2) * (count - 1)
        shift = stats.t.isf(0.03 / 2, freedom) * deviation * math.sqrt(2 / count)
        values[f"n{place}",] = (0.9 - shift + noise).tolist()
    (text,) = [text for text in told(sweep(values, "name")) if "apart" in text or "beyond" in text]
    assert text.startswith("10 others cannot be told apart")
    (text,) = [t for t in told(sweep(dict([*values.items()][:2]), "name")) if "beyond" in t]
    assert "the others are worse, beyond chance" in text


def test_equal_trials_of_each_setting() -> None:
    """Without any deviation, other means are other settings, and equal ones are not."""
    different = told(sweep({("a",): [0.9, 0.9], ("b",): [0.8, 0.8]}, "name"))
    assert any(text.startswith("By 2 trials each, the others are worse") for text in different)
    same = told(sweep({("a",): [0.9, 0.9], ("b",): [0.9, 0.9]}, "name"))
    assert any(text.startswith("1 other cannot be told apart") for text in same)


def test_folds_are_compared_in_pairs() -> None:
    """What the folds share does not hide a small difference between settings."""
    shift = [0.0, 0.1, -0.1, 0.05, -0.05]
    trials = [
        trial(
            5 * place + fold,
            0.8 - 0.02 * place + change + 0.0005 * ((fold + place) % 3),
            {"lr": str(place), "data.fold": str(fold), "data.folds": "5"},
        )
        for place in range(2)
        for fold, change in enumerate(shift)
    ]
    part = Part(Path("sweeps/mine"), "mine", trials, ["lr", "data.fold"])
    assert "By 5 trials each, the others are worse, beyond chance" in told(part)


def test_a_number_that_is_best_at_the_edge() -> None:
    rising = {(str(n),): [value] for n, value in ((1, 0.5), (2, 0.7), (3, 0.9))}
    assert (
        "width is best at the largest value that was tried, 3 (90.00%; 2: 70.00%). Try larger ones"
        in told(sweep(rising, "width"))
    )
    falling = {(str(n),): [value] for n, value in ((1, 0.9), (2, 0.7), (3, 0.5))}
    assert any(
        "best at the least value" in text and "smaller" in text
        for text in told(sweep(falling, "width"))
    )
    for values in (
        {("1",): [0.5], ("2",): [0.9], ("3",): [0.7]},  # within
        {("1",): [0.5], ("2",): [0.89], ("3",): [0.9]},  # the difference may be chance
        {("1",): [0.5], ("3",): [0.9]},  # two values show no way
        {("a",): [0.5], ("b",): [0.7], ("c",): [0.9]},  # names have no edge
    ):
        assert not [text for text in told(sweep(values, "width")) if "was tried" in text]
    losses = sweep(rising, "width", monitor="val/loss")
    assert not [text for text in told(losses) if "was tried" in text]  # its chance is unknown
    seeds = {(str(n),): [v - 0.01, v + 0.01] for n, v in ((1, 0.5), (2, 0.7), (3, 0.9))}
    assert any("largest value" in text for text in told(sweep(seeds, "width")))


def test_the_key_that_matters_most() -> None:
    clear = {"lr": KeyImportance(0.8, 0.6, 0.9), "width": KeyImportance(0.2, 0.1, 0.4)}
    close = clear | {"momentum": KeyImportance(0.1, 0.0, 0.6), "depth": KeyImportance(0, 0, 0.3)}
    part = sweep({("1",): [0.5], ("2",): [0.5]}, "lr")

    def important(shares: Mapping[str, KeyImportance], *typed: str) -> list[Sentence]:
        own = ["lr=interval(0,1)", "width=choice(1,2)", *typed]
        found = sentences(replace(part, importance=shares, typed=own))
        return [each for each in found if "matter" in each.text]

    assert important({}) == important({"lr": KeyImportance(1, 1, 1)}) == []
    matters = "lr matters most: lr alone explains 80% (60% to 90%) of the differences between the"
    assert important(clear, "search.sampler=random") == [Sentence(f"{matters} trials")]
    assert important(clear) == []  # the trials of a sampler that learns are mostly near the best
    search = as_command("search")
    told = "2 trials do not tell which key matters most, for the intervals overlap: "
    told += "lr 80% (60% to 90%), momentum 10% (0% to 60%)"
    assert important(close, "search.sampler=tpe", "search.folder=mine") == [
        Sentence(
            f"{told}. Random trials tell more",
            f"{search} 'lr=interval(0,1)' 'width=choice(1,2)' search.sampler=random",
        )
    ]
    assert important(close, "search.sampler=random") == [
        Sentence(
            f"{told}. More trials tell more",
            f"{search} resume=sweeps/mine search.trials=4",
        )
    ]
    folds = [
        trial(number, 0.5, {"lr": str(number // 5), "data.fold": str(number % 5)})
        for number in range(10)
    ]
    part = Part(Path("sweeps/mine"), "mine", folds, ["lr", "data.fold"])
    (of_folds,) = important(close, "search.sampler=random")
    assert of_folds.text.startswith("2 trials")
    assert of_folds.command == f"{search} resume=sweeps/mine search.trials=4"


def test_two_seeds_tell_little_about_an_edge() -> None:
    """By the normal distribution the difference would be beyond chance, by Student's it is not."""
    values = [[0.5, 0.51], [0.80, 0.82], [0.83, 0.85]]
    part = sweep({(str(n),): each for n, each in enumerate(values, 1)}, "width")
    error = math.sqrt(0.0002 * (1 / 2 + 1 / 2))
    assert 1.96 < 0.03 / error < stats.t.ppf(0.975, 2)
    assert not [text for text in told(part) if "was tried" in text]
    more = [[0.5, 0.51], [0.70, 0.72], [0.83, 0.85]]
    clear = sweep({(str(n),): each for n, each in enumerate(more, 1)}, "width")
    assert any("largest value" in text for text in told(clear))


@pytest.mark.parametrize("seed", range(100))
def test_results_of_strangers_are_told_in_lines(seed: int) -> None:
    """Whatever numbers and texts the files have, there is no traceback, and no line of theirs."""
    draw = random.Random(seed)
    odd = [0, 1, -1, 5, 1e-300, 1e99, -1e120, 1e308, math.nan, math.inf, None, 0.5, 0.9]
    texts = ["1", "2", "3", "x", "[1]", "1e400", "nan", "a\nreport: evil"]
    keys = draw.sample(["lr", "width", "name", "seed", "data.fold"], draw.randint(0, 4))
    monitor = draw.choice(["val/acc", "val/loss", "val/r2", "val_mse"])
    shares = ("val_most_frequent_class", "test_most_frequent_class")
    trials = [
        trial(
            number, 0.5, {key: draw.choice(texts) for key in keys},
            monitor=monitor, best={m: draw.choice(odd) for m in (monitor, "val/acc", "val/loss")},
            data={key: draw.choice([0, 1, 400, 10**30, None]) for key in ("val", "test")}
            | {key: draw.choice([0, 0.5, 1, 2, -1, None]) for key in shares},
            losses=[draw.choice(odd) for _ in range(draw.randint(0, 8))],
            last={"train/acc": draw.choice(odd), "val/acc": draw.choice(odd)},
            **{"test/acc": draw.choice(odd)},
        )
        for number in range(draw.randint(1, 12))
    ]  # fmt: skip
    for folder, some in ((Path("sweeps/mine"), trials), (None, trials[:1])):
        for sentence in sentences(Part(folder, "s", some, keys)):
            assert "\n" not in str(sentence)
            assert len(str(sentence)) < 2000


def test_trials_that_diverged_and_what_they_share() -> None:
    values: dict[tuple[str, ...], Sequence[float | None]] = {
        ("0.1", "8"): [0.9], ("0.1", "16"): [0.5], ("9", "8"): [None], ("9", "16"): [None],
    }  # fmt: skip
    assert "2 trials diverged, which are all those with lr=9" in told(sweep(values, "lr", "width"))
    values["9", "32"] = [0.4]
    assert "2 trials diverged" in told(sweep(values, "lr", "width"))
    assert not [text for text in told(sweep({("1",): [0.9]}, "lr")) if "diverged" in text]
    assert told(sweep({("1",): [None]}, "lr")) == []


def test_what_was_interrupted_goes_on() -> None:
    (run,) = sentences(
        Part(
            None, "",
            [trial(0, 0.9, {}, status="interrupted", epochs=3, losses=[3.0, 2.0, 1.0, 0.5])], [],
        )
    )  # fmt: skip
    assert run.text == "The run was interrupted after 3 epochs. To go on with it"
    assert run.command == f"{as_command('train')} resume=sweeps/mine/0"
    part = sweep({("0.1",): [0.9], ("0.2",): [0.8]}, "optimizer.lr")
    assert not any("interrupted" in text for text in told(part))
    part.entries[1].result["status"] = "interrupted"
    assert "1 trial was interrupted" in told(part)


def test_no_better_than_the_most_frequent_class() -> None:
    bound = SHARE + 1.96 * math.sqrt(SHARE * (1 - SHARE) / 400)
    poor = told(sweep({("1",): [bound - 0.001], ("2",): [0.1]}, "lr"))
    assert (
        f"The val acc of {bound - 0.001:.2%} is no better than always answering the most frequent "
        "class, 12.00%, by 400 samples: the accuracy shows nothing that was learned" in poor
    )
    good = told(sweep({("1",): [bound + 0.001], ("2",): [0.1]}, "lr"))
    assert not [text for text in good if "no better" in text]


def single(value: float | None = 0.9, **more: Any) -> list[str]:
    run = trial(0, 0.9, {}, **{"test/acc": value, **more})
    return told(Part(None, "", [run], []))


def test_a_run_on_data_with_a_rare_class() -> None:
    data = {"name": "rare", "test": 1000, "test_most_frequent_class": 0.98}
    assert any("no better than" in text and "98.00%" in text for text in single(0.985, data=data))
    (against,) = single(0.995, data=data)
    assert against.startswith("The test acc of 99.50% must be held against always answering")
    assert single(0.9) == []


def test_a_run_that_was_tested_on_its_training_samples() -> None:
    data = {"name": "d", "test": 500, "test_in_training": 3}
    (text,) = single(data=data)
    assert text == (
        "3 samples of the test set are in the training set too, so accuracy on the test set "
        "promises too much"
    )
    assert single(data={"name": "d", "test": 500, "test_in_training": 0}) == []


def test_a_run_that_has_overfitted() -> None:
    rose = [9, 0.5, 0.4, 0.45, 0.6]
    last = {"train/acc": 0.99, "val/acc": 0.9}
    (text,) = single(losses=rose, last=last)
    assert text.startswith(
        "The model has overfitted: the validation loss was least after epoch 2, 0.4000, and rose "
        "to 0.6000. "
    )
    assert single(losses=rose, last={"train/acc": 0.91, "val/acc": 0.9}) == []
    assert single(losses=[9, 0.5, 0.4, 0.41, 0.42], last=last) == []


def test_a_run_that_ended_too_early() -> None:
    falling = [9, *(1 / n for n in range(1, 11))]
    (text,) = single(losses=falling)
    assert text == (
        "The validation loss still fell in the last 2 epochs, from 0.1250 to 0.1000: more epochs, "
        "such as trainer.max_epochs=20, should help"
    )
    assert single(losses=falling, stopped="early_stopping") == []
    assert single(losses=[9, *([1.0] * 10)]) == []
    assert single(losses=[*falling[:-1], 0.2]) == []
    swept = told(sweep({("1",): [0.9], ("2",): [0.5]}, "lr", losses=falling))
    assert text in swept


@pytest.mark.parametrize(
    ("values", "kept", "number", "title"),
    [
        (
            {("1",): [0.9, 0.99, 0.2], ("2",): [0.93, 0.91, 0.92]}, range(6), 5,
            ", the middle one of 3 of the best setting",
        ),
        ({("1",): [0.90, 0.96, 0.92, 0.94]}, range(4), 3, ", the middle one of 4 of the best"),
        (
            {("1",): [0.9, 0.99, 0.2], ("2",): [0.93, 0.91, 0.92]}, [1, 3], 3,
            ", the only one of 3 of the best setting whose weights were kept",
        ),
        (
            {("2",): [0.93, 0.91, 0.92, 0.1]}, [0, 1, 2], 2,
            ", the middle one of 3, of 4 of the best setting, whose weights were kept",
        ),
        ({("1",): [0.9, 0.99, 0.2], ("2",): [0.93, 0.91, 0.92]}, [1], 1, ""),
        ({("1",): [0.9], ("2",): [0.99]}, range(2), 1, ""),
    ],
)  # fmt: skip
def test_the_model_that_is_shown_is_no_lucky_one(
    values: dict[Any, list[float]],
    kept: Sequence[int],
    number: int,
    title: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`kept`: the trials that have their weights still."""
    monkeypatch.chdir(tmp_path)
    part = sweep(values, "lr")
    for place in kept:
        part.entries[place].run.checkpoints.mkdir(parents=True)
        part.entries[place].run.best_checkpoint.touch()
    assert part.shown is not None
    assert part.shown[0] is part.entries[number]
    assert part.shown[1].startswith(f"trial {number}{title}")
    assert bool(title) == (", the " in part.shown[1])
    assert sweep({("1",): [None, None]}, "lr").shown is None


def test_several_runs_and_committees_have_none() -> None:
    runs = [trial(n, 0.9, {"lr": str(n)}) for n in range(2)]
    assert sentences(Part(None, "Runs", runs, ["lr"])) == []
    committee = trial(0, 0.9, {}, committee={"members": []})
    assert sentences(Part(None, "", [committee], [])) == []


def test_a_committee_that_learned_nothing_is_told() -> None:
    data = {"test": 400, "test_most_frequent_class": 0.9}
    committee = trial(0, 0.9, {}, committee={"members": []}, data=data, **{"test/acc": 0.9})
    (sentence,) = sentences(Part(None, "", [committee], []))
    assert str(sentence) == (
        "The test acc of 90.00% is no better than always answering the most frequent class, "
        "90.00%, by 400 samples: the accuracy shows nothing that was learned"
    )


def test_a_committee_of_folds_has_the_figures_of_a_cross_validation() -> None:
    committee = trial(0, 0.9, {}, committee={"members": [], "folds": 4})
    (sentence,) = sentences(Part(None, "", [committee], []))
    assert "figures are those of a cross-validation: each of the 4 folds was" in str(sentence)


@pytest.mark.slow
def test_a_sweep_ends_with_the_sentences_of_its_page(command: Command, tmp_path: Path) -> None:
    found = command(
        "src.train", "-m", "hydra/launcher=fused", "data=digits", "trainer.max_epochs=3",
        "optimizer.lr=0.01,0.1", "model.hidden_sizes=[16]", "hydra.sweep.dir=mine",
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    *_, best, _, page = lines = found.stdout.strip().splitlines()
    assert page == "report: mine/report.html"
    assert any(
        line.startswith("The best of 2 settings is optimizer.lr=0.1: a val/acc of")
        for line in lines
    )
    assert best != page
    html = (tmp_path / "mine/report.html").read_text()
    assert "The best of 2 settings is optimizer.lr=0.1: a val/acc of" in html
    assert "src.confirm" not in html or "python -m src.confirm mine" in html


def test_beside_a_perfect_share_others_may_be_as_good() -> None:
    """The error of 100% is none, that of 93.75% of 32 samples is 4.3 points."""
    values = {("a",): [1.0], ("b",): [0.9375], ("c",): [0.8]}
    part = sweep(values, "name", data={"name": "digits", "val": 32})
    (text,) = [text for text in told(part) if "told apart" in text]
    assert text.startswith("1 other cannot be told apart from it by 32 validation samples")
    assert "name=b" in text


def test_of_equal_sizes_none_is_the_smallest() -> None:
    values = {("a",): [0.9], ("b",): [0.899]}
    (text,) = [t for t in told(sweep(values, "name", parameters=7)) if "told apart" in t]
    assert "smallest" not in text
    assert text.endswith(": name=b. To find out which is best, train them with fresh seeds")


def test_a_confirmation_is_told_first_and_not_advised_again(tmp_path: Path) -> None:
    part = replace(sweep({("a",): [0.9], ("b",): [0.899]}, "name"), folder=tmp_path)
    assert any(sentence.command for sentence in sentences(part))
    page = tmp_path / "confirm" / "confirm.html"
    page.parent.mkdir()
    page.touch()
    first, *others = sentences(part)
    assert first.text.startswith("The best settings were trained again with fresh seeds")
    assert first.text.endswith(f"see {page}")
    assert not any(sentence.command for sentence in others)
