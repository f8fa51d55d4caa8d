"""A committee of trained models: its choice, its values, and each command that takes it."""

import csv
import errno
import itertools
import json
import math
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from kindling.config.compose import compose
from kindling.inference.committees.making import greedy_selection, make_committee, summary
from kindling.inference.committees.members import differing_keys, read_request
from kindling.inference.evaluation import evaluate
from kindling.inference.export.export import export, open_safetensors
from kindling.inference.export.formats import FORMATS, FormatName, open_onnx, plan
from kindling.inference.logits import compute_logits, consult
from kindling.inference.prediction import predict
from kindling.inference.samples import source_of, validation_of
from kindling.models.committee import Committee
from kindling.records import checkpoint
from kindling.records.folder import Run
from kindling.records.loading import open_trained
from kindling.records.lookup import MODEL, find, units
from kindling.records.removal import leftovers, remove_all
from kindling.system import files
from kindling.system.errors import InputError
from kindling.training.fit import fit
from tests.helpers.commands import SMALL, Command, Train
from tests.helpers.kills import Killed, dead_leave_files_open, die_at_call


def test_the_mean_of_the_members_softmax(sweep: Path, committee: Run) -> None:
    """Loss, accuracy and votes by hand, from each member as `evaluate` computes it."""
    trained = open_trained(committee.folder)
    source = source_of(trained)
    members = [open_trained(committee.folder / m["folder"]) for m in _members(committee)]
    each = [compute_logits(member, source.test).double().softmax(-1) for member in members]
    mean = torch.stack(each).mean(0)
    torch.testing.assert_close(compute_logits(trained, source.test).exp(), mean)
    labels = source.test.labels
    right = (mean.argmax(-1) == labels).sum().item() / len(labels)
    assert evaluate(trained, source).accuracy == committee.result["test/acc"] == right
    loss = -mean.gather(1, labels[:, None]).log().mean().item()
    assert committee.result["test/loss"] == pytest.approx(loss, rel=1e-12)
    opinions = consult(trained, source.test)
    tally = torch.stack([F.one_hot(p.argmax(-1), 10) for p in each]).double().mean(0)
    torch.testing.assert_close(opinions.tally, tally)
    bits = [-(p * p.log2()).sum(-1) for p in (mean, *each)]
    torch.testing.assert_close(opinions.disagreement, bits[0] - sum(bits[1:]) / 3)
    assert opinions.disagreement.max() <= math.log2(3)
    # The module itself gives the same in single precision.
    module = trained.model(source.test.features)
    torch.testing.assert_close(module.softmax(-1).double(), mean, rtol=1e-4, atol=1e-6)


def test_the_result_of_a_committee(sweep: Path, committee: Run) -> None:
    result, trials = committee.result, [Run(sweep / number) for number in "012"]
    assert result["status"] == "finished"
    assert result["parameters"] == sum(trial.result["parameters"] for trial in trials)
    ranked = sorted(trials, key=lambda trial: -trial.monitored)
    assert [(committee.folder / m["folder"]).resolve() for m in _members(committee)] == [
        trial.folder.resolve() for trial in ranked
    ]
    assert [m["val/acc"] for m in _members(committee)] == [trial.monitored for trial in ranked]
    made = result["committee"]
    assert (made["best"], made["greedy"], made["by"]) == (3, None, "val/acc")
    assert "seed" in made["differing"]
    assert "data.name" not in made["differing"]
    trained = open_trained(committee.folder)
    assert [member.config for member in trained.members] == [trial.config for trial in ranked]
    validation = validation_of(trained, source_of(trained))
    logits = compute_logits(trained, validation)
    assert result["best"]["val/loss"] == F.cross_entropy(logits, validation.labels).item()
    assert committee.ended
    assert committee.command.startswith("python -m src.committee ")
    assert committee.command.endswith("/sweep --best 3 --by val/acc")


def _members(committee: Run) -> list[dict[str, Any]]:
    return [dict(member) for member in committee.result["committee"]["members"]]


# --- greedy selection ----------------------------------------------------------------------------


def brute_force(probabilities: torch.Tensor, labels: torch.Tensor, most: int, by: str) -> list[int]:
    """Tries each model at each pick, and computes the metric from scratch."""

    def badness(picks: tuple[int, ...]) -> float:
        mean = probabilities[list(picks)].mean(0)
        if by == "val/acc":
            return float((mean.argmax(-1) != labels).double().mean())
        return float(F.nll_loss(mean.log(), labels))

    picks: tuple[int, ...] = ()
    path = []
    for _ in range(most):
        _, picks = min(
            ((round(badness((*picks, n)), 12), (*picks, n)) for n in range(len(probabilities))),
        )
        path.append((round(badness(picks), 12), len(picks), picks))
    return list(min(path)[2])


@pytest.mark.parametrize("by", ["val/loss", "val/acc"])
@pytest.mark.parametrize("seed", range(5))
def test_greedy_selection_against_brute_force(by: str, seed: int) -> None:
    stream = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, 30, 3, generator=stream, dtype=torch.float64)
    labels = torch.randint(3, (30,), generator=stream)
    logits[:, torch.arange(30), labels] += torch.tensor([[0.2], [0.5], [1.0], [1.2]])
    probabilities = logits.softmax(-1)
    found = greedy_selection(probabilities, labels, 8, by)
    assert found == brute_force(probabilities, labels, 8, by)


def test_greedy_selection_may_repeat_a_model() -> None:
    """Two thirds of the first and one third of the second model are the best mean."""
    first = torch.tensor([[0.9, 0.1], [0.3, 0.7], [0.4, 0.6]], dtype=torch.float64)
    labels = torch.tensor([0, 1, 0])
    second = torch.tensor([[0.5, 0.5], [0.2, 0.8], [0.7, 0.3]], dtype=torch.float64)
    picks = greedy_selection(torch.stack([first, second]), labels, 3, "val/loss")
    means = {
        chosen: -torch.stack([(first, second)[n] for n in chosen]).mean(0)[range(3), labels].log()
        for size in (1, 2, 3)
        for chosen in itertools.combinations_with_replacement((0, 1), size)
    }
    best = min(means, key=lambda chosen: float(means[chosen].mean()))
    assert sorted(picks) == [*best]


def test_a_greedy_committee_is_no_worse_than_its_best_member(train: Train, tmp_path: Path) -> None:
    common = ("model.hidden_sizes=[8]", "optimizer=adam", "optimizer.lr=0.01", "data.batch_size=16")
    paths = [train(*common, f"seed={seed}").folder for seed in (1, 2, 3)]
    for by in ("val/loss", "val/acc"):
        folder = tmp_path / by.replace("/", "-")
        run = make_committee(read_request(paths, greedy=12, by=by, folder=folder))
        values = [member[by] for member in _members(run)]
        found = run.result["best"]["val/loss" if by == "val/loss" else "val/acc"]
        assert found is not None
        best = (min if by == "val/loss" else max)(values)
        assert found <= best if by == "val/loss" else found >= best
        trained = open_trained(folder)
        assert isinstance(trained.model, Committee)
        assert sum(trained.model.votes) <= 12


def test_a_choice_of_one_model_is_a_committee_of_one(train: Train, tmp_path: Path) -> None:
    """The second run has hardly learnt anything."""
    good = train("trainer.max_epochs=10", "optimizer.lr=0.1")
    bad = train("optimizer.lr=1e-6")
    folder = tmp_path / "committee"
    request = read_request([good.folder, bad.folder], greedy=2, by="val/loss", folder=folder)
    made = make_committee(request)
    (member,) = _members(made)
    assert member["folder"] == os.path.relpath(good.folder, folder)
    assert made.result["test/acc"] == good.result["test/acc"]
    assert made.result["test/loss"] == pytest.approx(good.result["test/loss"], rel=1e-5)
    assert "\n\n1 member, chosen by val/loss, " in summary(made)
    assert open_trained(folder).members[0].config == good.config


# --- members that do not fit ---------------------------------------------------------------------


def test_a_committee_is_the_latest_though_the_clock_has_gone_back(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    swept = Path("sweeps/2100-01-01/00-00-00.000000")
    shutil.copytree(sweep, swept)
    run = make_committee(read_request([swept], best=2))
    assert run.folder == swept / "committee" == find("latest", MODEL)


def test_a_damaged_member_is_named(sweep: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(sweep / "1", other)
    (other / "checkpoints" / "best.ckpt").write_bytes(b"nonsense")
    request = read_request([sweep / "0", other], folder=tmp_path / "committee")
    with pytest.raises(InputError, match=r"other/checkpoints/best\.ckpt: is damaged"):
        make_committee(request)
    assert not request.folder.exists()


def test_a_member_with_other_classes_or_samples(sweep: Path, tmp_path: Path) -> None:
    """The files say the same data, but the checkpoint is of another model."""
    toy = fit(compose(*SMALL, "data=toy"), tmp_path / "toy")
    other = tmp_path / "other"
    shutil.copytree(sweep / "1", other)
    shutil.copy(toy.best_checkpoint, other / "checkpoints" / "best.ckpt")
    request = read_request([sweep / "0", other], folder=tmp_path / "committee")
    with pytest.raises(InputError, match=r"best\.ckpt: its data differs from that of .*: "):
        make_committee(request)


@pytest.fixture(scope="module")
def on_table(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Two runs on a table that differ in their seed."""
    folder = tmp_path_factory.mktemp("on_table")
    rows = [f"{n % 2 + n / 1000},{n % 7},{'EU' if n % 3 else 'US'},{n % 2}" for n in range(60)]
    (folder / "t.csv").write_text("\n".join(["a,b,region,kind", *rows]))
    keys = ("data=csv", f"data.path={folder / 't.csv'}", "data.target=kind", "data.encode=onehot")
    small = ("data.fill=median", "trainer=cpu", "trainer.max_epochs=1")
    return [fit(compose(*keys, *small, f"seed={n}"), folder / str(n)) for n in range(2)]


def _older(run: Run, folder: Path) -> Path:
    """A copy as it was before data.empty and the ends of columns."""
    shutil.copytree(run.folder, folder)
    older = Run(folder)
    content = checkpoint.read(older.best_checkpoint)
    del content["kindling"]["config"]["data"]["empty"], content["kindling"]["columns"]["empty"]
    del content["kindling"]["arrays"]
    for column in content["kindling"]["columns"]["columns"]:
        column.pop("low", None)
        column.pop("high", None)
    checkpoint.write(content, older.best_checkpoint)
    text = older.config_file.read_text()
    older.config_file.write_text(re.sub(r"\n  empty:.*(\n  - .*)*", "", text))
    assert older.config.data.model_dump()["empty"] is None
    return folder


@pytest.mark.parametrize("first", [0, 1])
def test_a_run_from_before_data_empty_joins_a_new_one(
    first: int, on_table: list[Run], tmp_path: Path
) -> None:
    other = on_table[1 - first].folder
    paths = [_older(on_table[first], tmp_path / "older"), other]
    run = make_committee(read_request(paths, folder=tmp_path / "committee"))
    source = source_of(open_trained(run.folder))
    each = [compute_logits(open_trained(path), source.test).double().softmax(-1) for path in paths]
    right = (torch.stack(each).mean(0).argmax(-1) == source.test.labels).double().mean().item()
    assert run.result["test/acc"] == right


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"low": None, "high": None}, None),
        ({"low": -9.0, "high": 9.0}, None),
        ({"mean": 7.0}, "column b"),
        ({"deviation": 7.0}, "column b"),
        ({"fill": 7.0}, "column b"),
        ({"name": "c"}, "list of columns"),
    ],
)
def test_columns_must_be_read_alike(
    change: dict[str, Any], named: str | None, on_table: list[Run], tmp_path: Path
) -> None:
    """Not: the same in what only tells of unusual numbers."""
    other = tmp_path / "other"
    shutil.copytree(on_table[1].folder, other)
    content = checkpoint.read(Run(other).best_checkpoint)
    content["kindling"]["columns"]["columns"][1] |= change
    checkpoint.write(content, Run(other).best_checkpoint)
    request = read_request([on_table[0].folder, other], folder=tmp_path / "committee")
    if named is None:
        assert len(_members(make_committee(request))) == 2
        return
    with pytest.raises(InputError, match=rf"best\.ckpt: its {named} differs from that of"):
        make_committee(request)


@pytest.mark.parametrize("where", ["order", "categories", "empty"])
def test_columns_in_another_order_or_with_other_texts(
    where: str, on_table: list[Run], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(on_table[1].folder, other)
    content = checkpoint.read(Run(other).best_checkpoint)
    columns = content["kindling"]["columns"]
    match where:
        case "order":
            columns["columns"].reverse()
        case "categories":
            columns["columns"][2]["categories"].reverse()
        case "empty":
            columns["empty"] = ["US"]
    checkpoint.write(content, Run(other).best_checkpoint)
    request = read_request([on_table[0].folder, other], folder=tmp_path / "committee")
    named = {"order": "list of columns", "categories": "column region", "empty": r"data\.empty"}
    with pytest.raises(InputError, match=rf"its {named[where]} differs from that of"):
        make_committee(request)


def test_arrays_must_be_read_alike(tmp_path: Path) -> None:
    """Bytes as numbers and bytes as pictures have one shape. A run from before data.kind reads as
    data.kind=auto does."""
    x = np.random.default_rng(0).integers(0, 256, (40, 6), np.uint8)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(40) % 2)
    keys = ("data=npz", f"data.path={tmp_path / 'a.npz'}", "trainer=cpu", "trainer.max_epochs=1")
    runs = [
        fit(compose(*keys, f"seed={n}", f"data.kind={kind}"), tmp_path / str(n))
        for n, kind in enumerate(["auto", "auto", "numbers"])
    ]
    folders = [run.folder for run in runs]
    with pytest.raises(InputError, match=r"2: has other data than .*: data\.kind=numbers"):
        read_request([folders[0], folders[2]], folder=tmp_path / "committee")
    shutil.copy(runs[2].best_checkpoint, runs[0].best_checkpoint)
    with pytest.raises(InputError, match=r"best\.ckpt: its arrays differs from that of"):
        make_committee(read_request(folders[:2], folder=tmp_path / "committee"))
    older = runs[0]
    older.config_file.write_text(older.config_file.read_text().replace("  kind: auto\n", ""))
    content = checkpoint.read(runs[1].best_checkpoint)
    content["kindling"]["arrays"] = None
    del content["kindling"]["config"]["data"]["kind"]
    checkpoint.write(content, older.best_checkpoint)
    run = make_committee(read_request(folders[:2], folder=tmp_path / "committee"))
    assert len(_members(run)) == 2


def test_a_full_disk_leaves_no_folder(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Run, "write_result", fail)
    with pytest.raises(OSError, match="No space left"):
        make_committee(read_request([sweep], best=2, folder=tmp_path / "new" / "c"))
    assert not (tmp_path / "new" / "c").exists()


@pytest.mark.parametrize("late", ["make_folder", "discarded_name", "lock_or_fail", "sync"])
def test_a_sweep_that_is_removed_meanwhile(
    late: str, sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its models were read. The sweep does not come back with a committee alone."""
    swept, real = tmp_path / "swept", getattr(files, late)
    shutil.copytree(sweep, swept)
    request = read_request([swept], best=2)

    def after_removal(*given: Any, **named: Any) -> Any:
        shutil.rmtree(swept, ignore_errors=True)
        return real(*given, **named)

    monkeypatch.setattr(files, late, after_removal)
    with pytest.raises(InputError, match=f"^{swept}: another command has removed it meanwhile$"):
        make_committee(request)
    assert [*tmp_path.iterdir()] == []


def test_members_that_are_removed_once_they_were_read(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A committee elsewhere holds their weights, and needs them no more."""
    swept = tmp_path / "swept"
    shutil.copytree(sweep, swept)
    expected = fingerprint(make_committee(read_request([swept], best=2, folder=tmp_path / "a")))
    request = read_request([swept], best=2, folder=tmp_path / "b")

    def before_removal(runs: Sequence[Run]) -> list[str]:
        keys = differing_keys(runs)
        shutil.rmtree(swept)
        return keys

    monkeypatch.setattr("kindling.inference.committees.making.differing_keys", before_removal)
    assert fingerprint(make_committee(request)) == expected


def test_a_committee_that_is_removed_before_it_is_told(sweep: Path, tmp_path: Path) -> None:
    run = make_committee(read_request([sweep], best=2, folder=tmp_path / "c"))
    shutil.rmtree(run.folder)
    with pytest.raises(InputError, match="c: another command has removed it meanwhile"):
        summary(run)


@pytest.mark.slow
@dead_leave_files_open
def test_killed_at_every_call_that_writes(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is whole or absent, so the same command works again, and nothing takes half a
    committee for a run. `runs clean` removes the rest."""
    monkeypatch.chdir(tmp_path)
    request = read_request([sweep], best=2, folder=Path("runs/new/c"))
    whole = read_request([sweep], best=2, folder=Path("runs/whole/c"))
    expected = fingerprint(make_committee(whole))
    for number in itertools.count():
        with monkeypatch.context() as patch:
            die_at_call(patch, number)
            try:
                make_committee(request)
                break
            except Killed:
                pass
        made = request.folder.exists()
        assert {*units()} == {whole.folder, *[request.folder] * made}
        if made:  # only its entry in the folder was not synced yet
            assert fingerprint(Run(request.folder)) == expected
            shutil.rmtree(request.folder)
        else:
            assert fingerprint(make_committee(request)) == expected
            shutil.rmtree(request.folder)
    assert number > 15
    remove_all({}, ask=False)
    assert leftovers() == []
    assert {path.name for path in request.folder.parent.iterdir()} <= {"c"}


def fingerprint(run: Run) -> dict[str, Any]:
    result = {
        key: value for key, value in run.result.items() if key not in ("seconds", "committee")
    }
    return result | {
        "files": sorted(str(path.relative_to(run.folder)) for path in run.folder.rglob("*")),
        "weights": run.best_checkpoint.read_bytes(),
        "config": run.config_file.read_bytes(),
    }


# --- the commands --------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_command_takes_a_committee(sweep: Path, command: Command, tmp_path: Path) -> None:
    done = command("src.committee", str(sweep), "--best", "3", "--folder", "c")
    assert done.returncode == 0, done.stderr
    run = Run(tmp_path / "c")
    accuracy = f"{run.result['test/acc']:.2%}"
    share = f"largest class {run.result['data']['test_most_frequent_class']:.2%}"
    assert f"test accuracy {accuracy} ({share}), loss {run.result['test/loss']:.4g}" in done.stdout
    assert done.stdout.endswith("folder c\n")
    names = [path.name for path in sorted(run.folder.rglob("*")) if path.is_file()]
    assert names == ["config.yaml", "best.ckpt", "result.json"]

    found = command("src.evaluate", "c", "--json")
    assert json.loads(found.stdout)["accuracy"] == run.result["test/acc"]

    source = source_of(open_trained(run.folder))
    np.savez(tmp_path / "x.npz", x=source.test.features.numpy(), y=source.test.labels.numpy())
    found = command("src.predict", "c", "x.npz")
    assert found.stdout.splitlines()[2].split()[5:7] == ["agree", "label"]
    assert f"accuracy {accuracy}" in found.stdout
    found = command("src.predict", "c", "x.npz", "--csv", "-")
    opinions = consult(open_trained(run.folder), source.test)
    best = opinions.logits.argmax(-1)
    for number, row in enumerate(csv.DictReader(found.stdout.splitlines())):
        assert row["class"] == str(int(best[number]))
        assert float(row["agreement"]) == pytest.approx(
            opinions.tally[number, best[number]].item(), abs=1e-4
        )
        assert float(row["disagreement"]) == pytest.approx(
            opinions.disagreement[number].item(), abs=1e-6
        )

    exported = command("src.export", "c")
    assert exported.returncode == 0, exported.stderr
    assert "members float32 (N, 3, 10)\n" in exported.stdout

    assert command("src.report", "c").returncode == 0
    page = (run.folder / "report.html").read_text()
    assert "committee of 3" in page
    assert "python -m src.committee" in page
    pictures = {path.stem for path in (run.folder / "report").iterdir()}
    assert pictures == {"run-model1-confusion", "run-model1-reliability", "run-model1-mistakes"}

    assert command("src.report", "c", "--bundle", "c.zip").returncode == 0
    refused = command("src.reproduce", "c.zip")
    assert refused.returncode == 2
    assert "c.zip: holds a committee, whose members were trained apart" in refused.stderr
    for arguments in (["resume=c"], ["resume=c", "trainer.max_epochs=9"]):
        refused = command("src.train", *arguments)
        assert refused.returncode == 2
        assert "c: is a committee, which cannot be trained" in refused.stderr
    with pytest.raises(InputError, match="is a committee, which cannot be trained"):
        fit(run.config, run.folder, resume=True)


@pytest.mark.parametrize("format_", ["onnx", "torch", "safetensors"])
def test_an_export_of_a_committee(format_: FormatName, committee: Run, tmp_path: Path) -> None:
    output = tmp_path / f"model{FORMATS[format_].suffix}"
    found = export(plan(committee.folder, format_, output, force=False))
    assert found.difference <= found.allowed
    assert found.score == committee.result["test/acc"]
    assert found.metadata.members is not None
    trained = open_trained(committee.folder)
    features = source_of(trained).test.features[:9]
    assert isinstance(trained.model, Committee)
    expected = trained.model.opinions(features)
    if format_ == "onnx":
        model = open_onnx(found.output)
        actual = torch.from_numpy(model.member_log_probabilities(features.squeeze(1).numpy()))
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    if format_ == "safetensors":
        raw, metadata = open_safetensors(found.output)
        assert metadata.members == found.metadata.members
        torch.testing.assert_close(raw(features.squeeze(1))[1], expected)


def test_probabilities_from_python(committee: Run) -> None:
    trained = open_trained(committee.folder)
    test = source_of(trained).test
    probabilities = predict(trained, test.features.numpy())
    np.testing.assert_allclose(probabilities, compute_logits(trained, test).exp().numpy())
    assert probabilities.sum(1) == pytest.approx(np.ones(len(test)))


def test_the_checkpoint_holds_plain_values(committee: Run) -> None:
    content = torch.load(committee.best_checkpoint, weights_only=True)
    assert content.keys() == {"kindling", "state_dict"}
    assert content["kindling"]["format"] == checkpoint.FORMAT
    assert [member["votes"] for member in content["kindling"]["members"]] == [1, 1, 1]
    assert {name.split(".")[2] for name in content["state_dict"]} == {"0", "1", "2"}


def test_the_summary_says_how_members_were_found_and_which_are_better(
    sweep: Path, committee: Run, tmp_path: Path
) -> None:
    assert "3 members, chosen by val/acc, " in summary(committee)
    named = make_committee(read_request([sweep / "0", sweep / "1"], folder=tmp_path / "named"))
    assert "2 members, " in summary(named)
    assert "chosen" not in summary(named)
    made, best = committee.result["committee"], committee.result["best"]
    for accuracy, told in ((1.0, False), (0.0, True)):
        result = committee.result | {"best": best | {"val/acc": accuracy}}
        other = Run(tmp_path / f"{told}")
        other.folder.mkdir()
        other.write_result(result)
        assert ("by val/acc, the best member alone is better" in summary(other)) == told
    assert made["by"] == "val/acc"
