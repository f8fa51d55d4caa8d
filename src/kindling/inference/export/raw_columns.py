"""The preparation of a table's columns as a part of an ONNX model, which then takes the columns as
a table has them: an input (N, 1) for each column.

A column of numbers takes float64, NaN where a cell is empty, without marks such as % and
thousands' separators. A column of texts takes texts, "" where a cell is empty, without white space
around them. A column of dates takes float64, seconds since 1970 in UTC, NaN where a cell is empty.
What a command would refuse gives NaN: an empty cell of a column that had none in training.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kindling.data.tables.cells import FORMERLY_EMPTY, numbers_among
from kindling.data.tables.columns import (
    WITHIN,
    AnyColumn,
    Columns,
    DateColumn,
    NumberColumn,
    TextColumn,
)
from kindling.data.tables.table import Table

if TYPE_CHECKING:
    import onnx

ML = "ai.onnx.ml"  # the domain of LabelEncoder
ML_VERSION = 3


def input_names(columns: Columns, outputs: Sequence[str]) -> list[str]:
    """A name for the input of each column: its own, unless it is empty or that of an output."""
    own, found = columns.names, []
    for column in own:
        name = column
        while name in (*outputs, "") or (name != column and name in own):
            name = f"column {name}"
        found.append(name)
    return found


def raw_inputs(columns: Columns, names: Sequence[str], table: Table) -> dict[str, NDArray[Any]]:
    """The inputs that stand for the rows of a table."""
    found = dict[str, NDArray[Any]]()
    for name, ((column, _), *_) in zip(names, columns.by_name.values(), strict=True):
        cells = column.cells(table, columns.empty)
        if isinstance(column, NumberColumn):
            values = cells.read
        elif isinstance(column, DateColumn):
            values = column.times(cells)
        else:
            values = np.array(cells.texts, object)
        found[name] = values[:, None]
    return found


def with_columns(model: "onnx.ModelProto", columns: Columns, own_input: str) -> "onnx.ModelProto":
    """A model that takes the columns in place of `own_input`, the features (N, width)."""
    import onnx
    from onnx import TensorProto, compose, helper

    outputs = [value.name for value in model.graph.output]
    names = input_names(columns, outputs)
    prefix = "model/"
    while any(name.startswith(prefix) for name in names):
        prefix = f"_{prefix}"
    model = compose.add_prefix(model, prefix, rename_outputs=False)
    graph, builder = model.graph, _Builder(f"{prefix}columns")
    features = [
        part
        for name, parts in zip(names, columns.by_name.values(), strict=True)
        for column, _ in parts
        for part in builder.features(name, column, columns.empty)
    ]
    builder.add("Concat", features, f"{prefix}{own_input}", axis=1)
    nodes = [*builder.nodes, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(builder.constants)
    del graph.input[:]
    for name, ((column, _), *_) in zip(names, columns.by_name.values(), strict=True):
        kind = TensorProto.STRING if isinstance(column, TextColumn) else TensorProto.DOUBLE
        graph.input.append(helper.make_tensor_value_info(name, kind, ["N", 1]))
    if any(node.domain == ML for node in graph.node):
        model.opset_import.append(helper.make_opsetid(ML, ML_VERSION))
    onnx.checker.check_model(model)
    return model


class _Builder:
    """Collects nodes and constants. The names of values begin with `prefix`."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def _name(self) -> str:
        return f"{self.prefix}/{len(self.nodes) + len(self.constants)}"

    def constant(self, value: Any, dtype: Any = np.float64) -> str:
        from onnx import numpy_helper

        name = self._name()
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def add(self, kind: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        from onnx import helper

        output = output or self._name()
        self.nodes.append(helper.make_node(kind, inputs, [output], output, **attributes))
        return output

    def as_float32(self, value: str) -> str:
        from onnx import TensorProto

        return self.add("Cast", [value], to=TensorProto.FLOAT)

    def features(self, name: str, column: AnyColumn, empty: Sequence[str] | None) -> Iterator[str]:
        """The values (N, …) that together are the features (N, width) of a column, in float32. The
        arithmetic is that of data/tables/columns.py, in the same order and precision."""
        words = frozenset(FORMERLY_EMPTY if empty is None else empty)
        if isinstance(column, TextColumn):
            gaps, parts = self._texts(name, column, words)
        elif isinstance(column, DateColumn):
            gaps, parts = self._dates(name, column)
        else:
            gaps, parts = self._numbers(name, column, words)
        yield from map(self.as_float32, parts)
        if column.absent:
            yield self.as_float32(gaps)

    def _scaled(self, value: str, minus: Any, divisor: Any) -> str:
        shifted = self.add("Sub", [value, self.constant(minus)])
        return self.add("Div", [shifted, self.constant(divisor)])

    def _numbers(
        self, name: str, column: NumberColumn, words: frozenset[str]
    ) -> tuple[str, list[str]]:
        gaps = self.add("IsNaN", [name])
        for number in numbers_among(words):
            same = self.add("Equal", [name, self.constant(number)])
            gaps = self.add("Or", [gaps, same])
        fill = np.nan if column.fill is None else column.fill
        filled = self.add("Where", [gaps, self.constant(fill), name])
        parts = [self._scaled(filled, column.mean, column.deviation)]
        if column.edges:
            edges = np.array(column.edges)
            place = self._scaled(filled, edges[:-1], np.diff(edges))
            place = self.add("Clip", [place, self.constant(0), self.constant(1)])
            parts.append(self.add("Mul", [self.constant(WITHIN), place]))
        return gaps, parts

    def _codes(self, name: str, numbers: Mapping[str, int]) -> str:
        """The number of each text, -1 of others."""
        return self.add(
            "LabelEncoder", [name], domain=ML,
            keys_strings=[*numbers], values_int64s=[*numbers.values()], default_int64=-1,
        )  # fmt: skip

    def _texts(self, name: str, column: TextColumn, words: frozenset[str]) -> tuple[str, list[str]]:
        known, empty = column.number_of, sorted({"", *words})
        fill = -1 if column.fill is None else known.get(column.fill, -1)
        codes = self._codes(name, known | dict.fromkeys(empty, fill))
        categories = self.constant(np.arange(column.own), np.int64)
        gaps = self._codes(name, dict.fromkeys(empty, 1)) if column.absent else ""
        if gaps:
            gaps = self.add("Equal", [gaps, self.constant(1, np.int64)])
        return gaps, [self.add("Equal", [codes, categories])]

    def _dates(self, name: str, column: DateColumn) -> tuple[str, list[str]]:
        gaps = self.add("IsNaN", [name])
        parts = [self._scaled(name, column.mean, column.deviation)]
        for cycle in column.cycles:
            turned = self.add("Mul", [self.constant(2 * np.pi), name])
            angle = self.add("Div", [turned, self.constant(cycle)])
            parts += [self.add("Sin", [angle]), self.add("Cos", [angle])]
        zero = self.constant(0)
        return gaps, [self.add("Where", [gaps, zero, part]) for part in parts]
