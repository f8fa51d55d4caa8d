"""Exported models are equal to the model, and a failed export leaves no file."""

import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given
from safetensors import safe_open
from safetensors.torch import save_file

from kindling.config.compose import compose
from kindling.data.sources.catalogue import open_source
from kindling.data.sources.source import Source
from kindling.inference.export import export as exporters
from kindling.inference.export.export import WRITERS, export, open_safetensors
from kindling.inference.export.formats import FORMATS, FormatName, open_onnx, plan
from kindling.records.folder import Run
from kindling.records.loading import open_trained
from kindling.system.errors import InputError, Interrupted
from kindling.system.units import size
from tests.helpers.commands import ROOT, Command, Train
from tests.helpers.faults import own_error
from tests.helpers.mutations import MUTATIONS, Mutation, examples, mutated


def as_bytes(source: Source) -> Source:
    """The same pictures as bytes, like those in MNIST's files."""
    test = source.test
    pictures = test.features.mul(255).round().to(torch.uint8)
    return replace(source, test=replace(test, features=pictures))


def ask(path: Path, inputs: torch.Tensor) -> torch.Tensor:
    """The logits of an exported model, computed without this project."""
    if path.suffix == ".onnx":
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        (found,) = session.run(["logits"], {"inputs": inputs.numpy()})
        return torch.from_numpy(found)
    logits: torch.Tensor = torch.export.load(path).module()(inputs)
    return logits


@pytest.mark.slow
@pytest.mark.parametrize("format_", ["onnx", "torch"])
def test_exports_take_raw_bytes(
    format_: FormatName, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporters, "source_of", lambda _: as_bytes(open_source_of(run)))
    path = tmp_path / f"model{FORMATS[format_].suffix}"
    done = export(plan(run.folder, format_, path, force=False))
    assert (done.samples, done.metadata.input_dtype) == (359, "uint8")
    assert done.difference <= 1e-5
    assert done.score == pytest.approx(run.result["test/acc"], abs=0.01)
    model = open_trained(run.folder).model
    for count in (0, 1, 7, 300):
        pictures = torch.randint(256, (count, 28, 28), dtype=torch.uint8)
        with torch.no_grad():
            expected = model(pictures.unsqueeze(1) / 255)
        torch.testing.assert_close(ask(path, pictures), expected, atol=1e-5, rtol=1e-5)


def open_source_of(run: Run) -> Source:
    return open_source(run.config.data)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "formats"),
    [
        (["model=logistic_regression"], ["onnx"]),
        (["data=toy", "data.factor=4", "model.hidden_sizes=[3,2]"], ["safetensors", "torch"]),
        (["data=synthetic", "data.shape=[3,4]", "data.classes=3"], ["onnx", "safetensors"]),
        (["trainer.precision=64", "model.activation=tanh"], FORMATS),
        (["trainer.precision=bf16-mixed", "model.activation=gelu"], ["onnx"]),
        (["model.gradient_checkpointing=true", "model.dropout=0.5"], ["torch"]),
        (["model.noise=0.3", "model.norm=layer"], FORMATS),
    ],
)
def test_any_model_any_format(
    overrides: list[str], formats: list[FormatName], train: Train
) -> None:
    run = train(*overrides, "trainer.max_epochs=1")
    test = open_source_of(run).test
    trained = open_trained(run.folder)
    dtype = next(trained.model.parameters()).dtype
    with torch.no_grad():
        expected = trained.model(test.features.to(dtype))
    for name in formats:
        done = export(plan(run.folder, name, None, force=False))
        assert done.output == run.folder / f"model{FORMATS[name].suffix}"
        assert done.samples == len(test)
        assert done.score == (expected.argmax(-1) == test.labels).double().mean().item()
        assert 0 <= done.difference <= done.allowed < (1e-3 if dtype == torch.float32 else 1e-11)
        if name != "safetensors":
            found = ask(done.output, test.features.reshape(-1, *done.metadata.input_shape))
            assert found.dtype == dtype
            assert (found - expected).abs().max().item() == pytest.approx(done.difference, abs=1e-6)


@pytest.mark.slow
def test_mnist(train: Train, mnist_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train("data=mnist", f"data.root={mnist_root}", "trainer.max_epochs=1")
    done = export(plan(run.folder, "onnx", None, force=False))
    assert (done.samples, done.metadata.input_dtype) == (10_000, "uint8")
    assert done.score == pytest.approx(run.result["test/acc"], abs=2e-4)
    assert done.difference < 1e-4
    test = open_source_of(run).test
    right = (ask(done.output, test.features[:, 0]).argmax(-1) == test.labels).sum().item()
    assert right / 10_000 == done.score
    # Without its data there is nothing to compare with, and so no file.
    digits = open_source(compose("data=digits").data)
    instead = replace(digits, instead_of="mnist, because the download failed")
    monkeypatch.setattr(exporters, "source_of", lambda _: instead)
    with pytest.raises(
        InputError, match=r"data=mnist: .* cannot be loaded: the download failed; type D"
    ):
        export(plan(run.folder, "torch", None, force=False))
    assert not (run.folder / "model.pt2").exists()


# --- what does not come to a file -------------------------------------------------------------


def broken(change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The safetensors format with a loader whose logits are changed."""
    write, load = WRITERS["safetensors"]

    def altered(path: Path) -> Any:
        run: Any = load(path)
        return lambda inputs: change(run(inputs))

    return (write, altered)


def one_wrong(logits: torch.Tensor) -> torch.Tensor:
    logits[-1, 3] += 0.1
    return logits


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (one_wrong, "differ from the model's by up to 0.1 on 359 test samples of digits, allowed"),
        (lambda logits: logits * torch.nan, "by up to inf"),
        (lambda logits: logits[:, :9], r"gives torch.float32 \(1, 9\), expected"),
        (lambda logits: logits.double(), r"gives torch.float64 \(1, 10\), expected"),
    ],
)
def test_a_wrong_export_leaves_no_file(
    change: Callable[[torch.Tensor], torch.Tensor],
    message: str,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(WRITERS, "safetensors", broken(change))
    path = tmp_path / "model.safetensors"
    with pytest.raises(InputError, match=message):
        export(plan(run.folder, "safetensors", path, force=False))
    assert list(tmp_path.iterdir()) == []
    path.write_text("what the user had")
    with pytest.raises(InputError, match=message):
        export(plan(run.folder, "safetensors", path, force=True))
    assert [p.read_text() for p in tmp_path.iterdir()] == ["what the user had"]


def test_an_interrupted_export_leaves_no_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(logits: torch.Tensor) -> torch.Tensor:
        raise Interrupted(2)

    monkeypatch.setitem(WRITERS, "safetensors", broken(interrupt))
    with pytest.raises(Interrupted):
        export(plan(run.folder, "safetensors", tmp_path / "model.safetensors", force=False))
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_diverged(train: Train) -> None:
    run = train()
    trained = open_trained(run.folder)
    with torch.no_grad():
        next(trained.model.parameters())[0, 0] = torch.nan
    with pytest.raises(InputError, match="are not all finite, the run diverged"):
        exporters.compare(trained, open_source_of(run).test, trained.model)


@pytest.mark.slow
def test_an_operation_that_onnxruntime_lacks(train: Train) -> None:
    run = train("trainer.precision=64", "model.activation=gelu", "trainer.max_epochs=1")
    before = sorted(run.folder.iterdir())
    with pytest.raises(InputError, match=r"model\.onnx: was not written: .* try another --format"):
        export(plan(run.folder, "onnx", None, force=False))
    assert sorted(run.folder.iterdir()) == before
    assert export(plan(run.folder, "torch", None, force=False)).difference == 0


def test_the_command(command: Command, run: Run, tmp_path: Path) -> None:
    arguments = [
        "src.export",
        str(run.folder),
        "--format",
        "safetensors",
        "--output",
        "m.safetensors",
    ]
    done = command(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    count = (tmp_path / "m.safetensors").stat().st_size
    first, second, third = done.stdout.splitlines()
    assert first == f"m.safetensors: {size(count)}"
    assert second == "inputs float32 (N, 28, 28), as in the data set; logits float32 (N, 10)"
    assert re.fullmatch(
        r"equal to the model on 359 test samples of digits: logits differ by at most "
        rf"[\d.e-]+ \(allowed 0\.000\d+\), accuracy {run.result['test/acc']:.2%}",
        third,
    )


# --- the files: the graph, the weights, and what is not in them -----------------------------------


@pytest.mark.slow
def test_a_graph_that_other_runtimes_read(files: dict[FormatName, Path]) -> None:
    model = onnx.load(files["onnx"])
    onnx.checker.check_model(model, full_check=True)
    shapes = [
        [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    ]
    assert shapes == [["N", 28, 28], ["N", 10]]
    assert "Dropout" not in {node.op_type for node in model.graph.node}


@pytest.mark.slow
def test_a_file_names_nothing_of_this_machine(files: dict[FormatName, Path]) -> None:
    contents = [path.read_bytes() for path in files.values()]
    with zipfile.ZipFile(files["torch"]) as archive:
        contents += [archive.read(name) for name in archive.namelist()]
    for content in contents:
        assert str(ROOT).encode() not in content
        assert b"site-packages" not in content
        assert b".py" not in content


def test_safetensors_rebuild_the_model(run: Run, files: dict[FormatName, Path]) -> None:
    model = open_trained(run.folder).model
    raw, about = open_safetensors(files["safetensors"])
    assert about.config == run.config.to_primitives()
    for name, value in model.state_dict().items():
        assert torch.equal(raw.model.state_dict()[name], value)
    pictures = torch.rand(5, 28, 28)
    assert torch.equal(raw(pictures), model(pictures.unsqueeze(1)))


@examples(2400)
@given(mutations=MUTATIONS)
def test_mutated_exports(
    mutations: Mutation, files: dict[FormatName, Path], tmp_path: Path
) -> None:
    readers: list[tuple[FormatName, Callable[[Path], Any]]] = [
        ("onnx", open_onnx),
        ("safetensors", open_safetensors),
    ]
    for name, reader in readers:
        path = tmp_path / f"mutated.{name}"
        path.write_bytes(mutated(files[name].read_bytes(), mutations))
        own_error(partial(reader, path))


def test_a_safetensors_file_of_others(
    run: Run, files: dict[FormatName, Path], tmp_path: Path
) -> None:
    path = tmp_path / "foreign.safetensors"
    with safe_open(files["safetensors"], "pt") as content:
        said = content.metadata()
    weights = open_trained(run.folder).model.state_dict()
    save_file(weights, path)
    with pytest.raises(InputError, match="was not exported by this project"):
        open_safetensors(path)
    save_file(weights, path, said | {"shape": "[1, 14, 14]"})
    with pytest.raises(InputError, match="was not exported by this project"):
        open_safetensors(path)
    path.write_bytes((2**40).to_bytes(8, "little") + b"{}")
    with pytest.raises(InputError, match=r"a header of 1,099,511,627,776 bytes"):
        open_safetensors(path)
