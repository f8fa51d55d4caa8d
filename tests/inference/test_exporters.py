"""Exported models: equal to the model, complete in what they say, and never half written."""

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given
from safetensors import safe_open
from safetensors.torch import save_file

from src.config.compose import compose
from src.data.sources.catalogue import open_source
from src.data.sources.source import Source
from src.inference import exporters as exporting
from src.inference.exporters import export, open_safetensors
from src.inference.formats import FORMATS, FormatName, open_onnx, plan
from src.runs.folder import Run
from src.runs.loading import open_trained
from src.system import extras
from src.system.errors import InputError, Interrupted
from src.system.files import replacing, sha256
from src.training.fit import fit
from tests.helpers.commands import ROOT, SMALL, Command, Train
from tests.helpers.faults import own_error
from tests.helpers.mutations import MUTATIONS, Mutation, examples, mutated

ALL = tuple(FORMATS)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(compose(*SMALL, "model.dropout=0.1"), tmp_path_factory.mktemp("export") / "run")


@pytest.fixture(scope="module")
def files(run: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[FormatName, Path]:
    """The run's model in every format."""
    folder = tmp_path_factory.mktemp("files")
    paths = {name: folder / f"m{FORMATS[name].suffix}" for name in ALL}
    for name, path in paths.items():
        export(plan(run.folder, name, path, force=False))
    return paths


def as_bytes(source: Source) -> Source:
    """The same pictures as MNIST's files have them."""
    test = source.test
    pictures = test.features.mul(255).round().to(torch.uint8)
    return replace(source, test=replace(test, features=pictures))


def ask(path: Path, inputs: torch.Tensor) -> torch.Tensor:
    """The logits of an exported model, by what a user of the file has: nothing of this project."""
    if path.suffix == ".onnx":
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        (found,) = session.run(["logits"], {"inputs": inputs.numpy()})
        return torch.from_numpy(found)
    logits: torch.Tensor = torch.export.load(path).module()(inputs)
    return logits


@pytest.mark.parametrize("format_", ["onnx", "torch"])
def test_raw_bytes_go_in(
    format_: FormatName, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "source_of", lambda _: as_bytes(open_source_of(run)))
    path = tmp_path / f"model{FORMATS[format_].suffix}"
    done = export(plan(run.folder, format_, path, force=False))
    assert (done.samples, done.description.input_dtype) == (359, "uint8")
    assert done.difference <= 1e-5
    assert done.accuracy == pytest.approx(run.result["test/acc"], abs=0.01)
    model = open_trained(run.folder).model
    for count in (0, 1, 7, 300):
        pictures = torch.randint(256, (count, 28, 28), dtype=torch.uint8)
        with torch.no_grad():
            expected = model(pictures.unsqueeze(1) / 255)
        torch.testing.assert_close(ask(path, pictures), expected, atol=1e-5, rtol=1e-5)


def open_source_of(run: Run) -> Source:
    return open_source(run.config.data)


@pytest.mark.parametrize(
    ("overrides", "formats"),
    [
        (["model=logistic_regression"], ["onnx"]),
        (["data=toy", "data.factor=4", "model.hidden_sizes=[3,2]"], ["safetensors", "torch"]),
        (["data=synthetic", "data.shape=[3,4]", "data.classes=3"], ["onnx", "safetensors"]),
        (["trainer.precision=64", "model.activation=tanh"], ALL),
        (["trainer.precision=bf16-mixed", "model.activation=gelu"], ["onnx"]),
        (["model.gradient_checkpointing=true", "model.dropout=0.5"], ["torch"]),
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
        assert done.accuracy == (expected.argmax(-1) == test.labels).double().mean().item()
        assert 0 <= done.difference <= done.allowed < (1e-3 if dtype == torch.float32 else 1e-11)
        if name != "safetensors":
            found = ask(done.output, test.features.reshape(-1, *done.description.input_shape))
            assert found.dtype == dtype
            assert (found - expected).abs().max().item() == pytest.approx(done.difference, abs=1e-6)


def test_what_a_file_says(run: Run, files: dict[FormatName, Path]) -> None:
    said: dict[str, dict[str, str]] = {}
    said["onnx"] = {p.key: p.value for p in onnx.load(files["onnx"]).metadata_props}
    extra = {"kindling.json": ""}
    torch.export.load(files["torch"], extra_files=extra)
    said["torch"] = json.loads(extra["kindling.json"])
    with safe_open(files["safetensors"], "pt") as content:
        said["safetensors"] = content.metadata()
    assert said["onnx"] == said["torch"] == said["safetensors"]
    about = said["onnx"]
    assert json.loads(about["labels"]) == [*"0123456789"]
    assert json.loads(about["config"]) == run.config.to_primitives()
    del about["labels"], about["config"]
    assert about == {
        "version": "0.1.0",
        "config_hash": run.result["config_hash"],
        "checkpoint_sha256": sha256(run.best_checkpoint),
        "data": "digits",
        "shape": "[1, 28, 28]",
        "columns": "null",
        "input_shape": "[28, 28]",
        "input_dtype": "float32",
        "dtype": "float32",
    }


def test_a_graph_that_other_runtimes_read(files: dict[FormatName, Path]) -> None:
    model = onnx.load(files["onnx"])
    onnx.checker.check_model(model, full_check=True)
    shapes = [
        [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    ]
    assert shapes == [["N", 28, 28], ["N", 10]]
    assert "Dropout" not in {node.op_type for node in model.graph.node}


def test_nothing_of_the_machine_is_in_a_file(files: dict[FormatName, Path]) -> None:
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


def test_mnist(train: Train, mnist_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train("data=mnist", f"data.root={mnist_root}", "trainer.max_epochs=1")
    done = export(plan(run.folder, "onnx", None, force=False))
    assert (done.samples, done.description.input_dtype) == (10_000, "uint8")
    assert done.accuracy == pytest.approx(run.result["test/acc"], abs=2e-4)
    assert done.difference < 1e-4
    test = open_source_of(run).test
    right = (ask(done.output, test.features[:, 0]).argmax(-1) == test.labels).sum().item()
    assert right / 10_000 == done.accuracy
    # Without its data there is nothing to compare with, and so no file.
    digits = open_source(compose("data=digits").data)
    instead = replace(digits, instead_of="mnist, because the download failed")
    monkeypatch.setattr(exporting, "source_of", lambda _: instead)
    with pytest.raises(
        InputError, match=r"data=mnist: .* cannot be had: the download failed; type D"
    ):
        export(plan(run.folder, "torch", None, force=False))
    assert not (run.folder / "model.pt2").exists()


# --- what does not come to a file --------------------------------------------------------------


def broken(change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The safetensors format with a loader whose answers are changed."""
    write, load = exporting.FORMS["safetensors"]

    def altered(path: Path) -> Any:
        run = load(path)
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
def test_a_difference_leaves_nothing(
    change: Callable[[torch.Tensor], torch.Tensor],
    message: str,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(exporting.FORMS, "safetensors", broken(change))
    path = tmp_path / "model.safetensors"
    with pytest.raises(InputError, match=message):
        export(plan(run.folder, "safetensors", path, force=False))
    assert list(tmp_path.iterdir()) == []
    path.write_text("what the user had")
    with pytest.raises(InputError, match=message):
        export(plan(run.folder, "safetensors", path, force=True))
    assert [p.read_text() for p in tmp_path.iterdir()] == ["what the user had"]


def test_a_signal_leaves_nothing(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(logits: torch.Tensor) -> torch.Tensor:
        raise Interrupted(2)

    monkeypatch.setitem(exporting.FORMS, "safetensors", broken(interrupt))
    with pytest.raises(Interrupted):
        export(plan(run.folder, "safetensors", tmp_path / "model.safetensors", force=False))
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_diverged(train: Train) -> None:
    run = train()
    trained = open_trained(run.folder)
    with torch.no_grad():
        next(trained.model.parameters())[0, 0] = torch.nan
    with pytest.raises(InputError, match="are not all finite, it diverged"):
        exporting.compare(trained, open_source_of(run).test, trained.model)


def test_an_operation_that_onnxruntime_lacks(train: Train) -> None:
    run = train("trainer.precision=64", "model.activation=gelu", "trainer.max_epochs=1")
    before = sorted(run.folder.iterdir())
    with pytest.raises(InputError, match=r"model\.onnx: was not written: .* try another --format"):
        export(plan(run.folder, "onnx", None, force=False))
    assert sorted(run.folder.iterdir()) == before
    assert export(plan(run.folder, "torch", None, force=False)).difference == 0


def test_replacing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replacing(path) as part:
        part.write_text("one")
        assert not path.exists()
    assert path.read_text() == "one"

    def fail() -> Iterator[None]:
        with replacing(path) as part:
            part.write_text("two")
            yield
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        list(fail())
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "one"


# --- what is told before torch is imported -----------------------------------------------------


def test_arguments_cost_no_torch(run: Run, tmp_path: Path) -> None:
    taken = tmp_path / "model.pt2"
    taken.write_text("the user's")
    told = {
        ("nowhere",): "error: nowhere: there is no such file or folder",
        (str(tmp_path),): "is no run folder, it has no checkpoints/best.ckpt; name a folder",
        (str(run.folder), "--format", "torch", "--output", str(taken)): (
            f"error: {taken}: is there already; type --force to replace it, or --output FILE"
        ),
        (str(run.folder), "--format", "keras"): "invalid choice: 'keras'",
    }
    script = (
        "import sys; from src.system.errors import exit_on_error; from src.export import main\n"
        f"for arguments in {list(told)}:\n"
        "    sys.argv[1:] = arguments\n"
        "    try:\n"
        "        with exit_on_error(): main()\n"
        "    except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "2 False\n" * len(told)
    for message in told.values():
        assert message in done.stderr
    assert taken.read_text() == "the user's"


def test_every_fault_at_once(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "_installed", lambda name: "onnxr" not in name)
    with pytest.raises(InputError) as raised:
        plan(tmp_path / "nowhere", "onnx", tmp_path / "away" / "model.pt2", force=False)
    assert str(raised.value).splitlines() == [
        "4 faults, nothing was exported",
        f"  {tmp_path / 'nowhere'}: there is no such file or folder",
        '  --format onnx: needs onnxruntime; type pip install -e ".[export]"',
        f"  --output {tmp_path / 'away/model.pt2'}: names another format; type --format torch, or "
        f"--output {tmp_path / 'away/model.onnx'}",
        f"  --output {tmp_path / 'away/model.pt2'}: there is no folder {tmp_path / 'away'}; make "
        "it first",
    ]
    with pytest.raises(InputError, match=r"is a folder; type --output .*model\.safetensors"):
        plan(run.folder, "safetensors", tmp_path, force=True)


def test_a_checkpoint_file_is_exported_beside_itself(run: Run) -> None:
    planned = plan(run.last_checkpoint, "safetensors", None, force=False)
    assert planned.output == run.checkpoints / "last.safetensors"


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
    size = (tmp_path / "m.safetensors").stat().st_size
    first, second, third = done.stdout.splitlines()
    assert first == f"m.safetensors: {size:,} bytes"
    assert second == "inputs float32 (N, 28, 28), as the data set has them; logits float32 (N, 10)"
    assert re.fullmatch(
        r"equal to the model on 359 test samples of digits: logits differ by at most "
        rf"\d\.\de[-+]\d\d \(allowed \d\.\de-04\), accuracy {run.result['test/acc']:.2%}",
        third,
    )


# --- files that strangers sent -----------------------------------------------------------------


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


def test_metadata_that_are_no_text(files: dict[FormatName, Path], tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    content = files["onnx"].read_bytes()
    assert content.count(b'["0", "1"') == 1
    path.write_bytes(content.replace(b'["0", "1"', b'["\xff", "1"'))
    with pytest.raises(InputError, match=r"model\.onnx: onnxruntime cannot run it"):
        open_onnx(path)


def test_a_foreign_onnx_model(files: dict[FormatName, Path], tmp_path: Path) -> None:
    path = tmp_path / "foreign.onnx"
    model = onnx.load(files["onnx"])
    said = list(model.metadata_props)
    del model.metadata_props[:]
    onnx.save(model, path)
    with pytest.raises(InputError, match="was not exported by this project"):
        open_onnx(path)
    model.metadata_props.extend(said)
    next(p for p in model.metadata_props if p.key == "input_shape").value = "[14, 14]"
    onnx.save(model, path)
    with pytest.raises(InputError, match=r"has .*\[28, 28\].* its metadata say .*\[14, 14\]"):
        open_onnx(path)


def test_a_model_that_names_files_outside_itself(
    files: dict[FormatName, Path], tmp_path: Path
) -> None:
    model = onnx.load(files["onnx"])
    weight = model.graph.initializer[0]
    (tmp_path / "secret").write_bytes(weight.raw_data)
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="secret")
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match=r"its weights lie in another file"):
        open_onnx(path)


def _of_nodes(*nodes: onnx.NodeProto, **weights: np.ndarray[Any, Any]) -> onnx.ModelProto:
    """Of inputs (N, 4), to logits (N, 2)."""
    shaped = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [shaped("inputs", onnx.TensorProto.FLOAT, ["N", 4])],
        [shaped("logits", onnx.TensorProto.FLOAT, ["N", 2])],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)])


NODE = onnx.helper.make_node
LARGE = np.zeros((2**20, 1), np.float32)
HARMFUL = {
    "a chosen size": _of_nodes(NODE("Expand", ["inputs", "to"], ["logits"]), to=np.array([9, 4])),
    "random": _of_nodes(NODE("RandomNormalLike", ["inputs"], ["logits"])),
    "of another domain": _of_nodes(NODE("Gelu", ["inputs"], ["logits"], domain="com.microsoft")),
    "a subgraph": _of_nodes(
        NODE("Loop", ["most", "yes"], ["logits"], body=_of_nodes().graph),
        most=np.array(2**60), yes=np.array(True),
    ),
    "an outer product": _of_nodes(
        NODE("MatMul", ["large", "across"], ["all"]), NODE("Identity", ["inputs"], ["logits"]),
        large=LARGE, across=LARGE.T,
    ),
    "growing sums": _of_nodes(
        NODE("Add", ["inputs", "one"], ["sum"]), NODE("Add", ["sum", "other"], ["all"]),
        NODE("Reshape", ["all", "flat"], ["logits"]),
        one=np.zeros((4096, 1, 1), np.float32), other=np.zeros((9999, 1, 1, 1), np.float32),
        flat=np.array([-1, 2]),
    ),
    "padding": _of_nodes(
        NODE("Reshape", ["inputs", "square"], ["picture"]),
        NODE("MaxPool", ["picture"], ["logits"], kernel_shape=[9, 9], pads=[10**9] * 4),
        square=np.array([-1, 1, 2, 2]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", HARMFUL)
def test_operators_that_the_export_never_writes(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(HARMFUL[kind].SerializeToString())
    with pytest.raises(InputError, match=r"model\.onnx: cannot be read as ONNX"):
        open_onnx(path)


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


def test_a_wrong_type_is_no_crash(files: dict[FormatName, Path]) -> None:
    model = open_onnx(files["onnx"], threads=1)
    assert model.logits(np.zeros((2, 28, 28), np.float32)).shape == (2, 10)
    with pytest.raises(Exception, match="Unexpected input data type"):
        model.logits(np.zeros((2, 28, 28), np.uint8))
