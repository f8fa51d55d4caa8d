"""Exported files: the graph, the weights, and what is not in them."""

import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from hypothesis import given
from safetensors import safe_open
from safetensors.torch import save_file

from src.inference.formats import FormatName
from src.inference.onnx_model import open_onnx
from src.inference.writers import open_safetensors
from src.runs.folder import Run
from src.runs.loading import open_trained
from src.system.errors import InputError
from tests.helpers.commands import ROOT
from tests.helpers.faults import own_error
from tests.helpers.mutations import MUTATIONS, Mutation, examples, mutated


def test_a_graph_that_other_runtimes_read(files: dict[FormatName, Path]) -> None:
    model = onnx.load(files["onnx"])
    onnx.checker.check_model(model, full_check=True)
    shapes = [
        [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    ]
    assert shapes == [["N", 28, 28], ["N", 10]]
    assert "Dropout" not in {node.op_type for node in model.graph.node}


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
