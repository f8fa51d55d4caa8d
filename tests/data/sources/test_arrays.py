"""Arrays in memory: read as those of a .npz file, with any classes."""

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kindling.config.compose import compose
from kindling.config.schema import Arrays
from kindling.data.sources.arrays import OwnArrays
from kindling.data.sources.catalogue import describe, open_source
from kindling.data.sources.source import Source
from kindling.inference.model import Model
from kindling.records.loading import open_trained
from kindling.system.errors import InputError
from kindling.training.fit import fit


class Column:
    """As those of pandas and polars: read by numpy.asarray, perhaps not to be written."""

    def __init__(self, values: Any) -> None:
        self.values = np.array(values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.values.flags.writeable = False
        return self.values


X, Y = np.arange(40, dtype=np.float32).reshape(10, 4) / 40, np.arange(10) % 2
BYTES = np.arange(10 * 5 * 5 * 3, dtype=np.uint8).reshape(10, 5, 5, 3)
PAIRS = ("data", "validation", "test")


def section(*typed: str, **pairs: Any) -> Arrays:
    found = compose("data=arrays", *typed).data
    assert isinstance(found, Arrays)
    return found.holding(OwnArrays(**pairs))


def opened(x: Any, y: Any, *typed: str, **pairs: Any) -> Source:
    return open_source(section(*typed, data=(x, y), **pairs))


@pytest.mark.parametrize("x", [X, X.astype(np.float64) * 30, BYTES, BYTES[..., 0], BYTES / 255.0])
@pytest.mark.parametrize("parts", [("data",), ("data", "test"), PAIRS])
@pytest.mark.parametrize("kind", ["auto", "numbers"])
def test_they_are_read_as_a_file_of_them(
    x: np.ndarray[Any, Any], parts: tuple[str, ...], kind: str, tmp_path: Path
) -> None:
    content, pairs = dict[str, Any](), dict[str, Any]()
    for number, name in enumerate(parts):
        end = {"data": "", "validation": "_val", "test": "_test"}[name]
        pairs[name] = (x[number:], Y[number:])
        content |= {f"x{end}": x[number:], f"y{end}": Y[number:]}
    np.savez(tmp_path / "a.npz", **content)
    typed = (f"data.kind={kind}", "data.test_fraction=0.4", "data.split_seed=3")
    config = compose("data=npz", f"data.path={tmp_path / 'a.npz'}", *typed)
    found, expected = open_source(section(*typed, **pairs)), open_source(config.data)
    assert (found.labels, found.arrays) == (expected.labels, expected.arrays)
    # Only a file gives its numbers (N, H, W) a channel: it may be older than data.kind.
    alone = kind == "numbers" and x.ndim == 3
    for name in ("train", "validation", "test"):
        own, other = getattr(found, name), getattr(expected, name)
        assert (own is None) == (other is None)
        if own is not None:
            assert own.features.dtype == other.features.dtype
            assert torch.equal(own.features, other.features.squeeze(1) if alone else other.features)
            assert torch.equal(own.labels, other.labels)
    notes = [[text.partition(": ")[2] for _, text in each.notes] for each in (found, expected)]
    assert notes[0] == notes[1]
    assert describe(section(*typed, **pairs)).shape == expected.shape[1 if alone else 0 :]


@pytest.mark.parametrize(
    "x",
    [
        X.tolist(), torch.from_numpy(X), torch.from_numpy(X).requires_grad_(), Column(X),
        np.asfortranarray(X), X.astype(">f4"), X[::-1][::-1],
    ],
)  # fmt: skip
def test_what_numpy_reads(x: Any) -> None:
    expected = opened(X, Y)
    for y in (Y, Y.tolist(), torch.from_numpy(Y), Column(Y), Y.astype(">i2")):
        found = opened(x, y)
        assert torch.equal(found.train.features, expected.train.features)
        assert torch.equal(found.test.labels, expected.test.labels)


def test_what_may_not_be_written_is_read_too() -> None:
    frozen = BYTES.copy()
    frozen.flags.writeable = False
    assert torch.equal(opened(frozen, Y).train.features, opened(BYTES, Y).train.features)


@pytest.mark.parametrize(
    ("y", "names"),
    [
        (np.array(["b", "a"] * 5), ("a", "b")),
        (np.array(["b", "a"] * 5, object), ("a", "b")),
        (np.array([b"b", b"a"] * 5), ("a", "b")),
        (np.array([7, -1] * 5), ("-1", "7")),
        (np.array([True, False] * 5), ("False", "True")),
        (["ä\n", ""] * 5, ("", "ä\n")),
    ],
)
def test_classes_are_texts_and_any_whole_numbers(y: Any, names: tuple[str, ...]) -> None:
    source = opened(X, y, validation=(X[:2], y[:2]), test=(X[1:], y[1:]))
    assert source.labels == names
    assert source.train.labels.tolist() == [1, 0] * 5
    assert source.validation is not None
    assert source.validation.labels.tolist() == [1, 0]
    assert source.test.labels.tolist() == [0, 1] * 4 + [0]


@pytest.mark.parametrize(
    ("pairs", "told"),
    [
        (
            {"data": X},
            r"^data: must be samples and their labels, .* type data=\(x, y\) or data=\(x, y, w\)$",
        ),
        ({"data": (X,)}, "^data: must be"),
        ({"data": (X, None)}, r"^data=\(x, y\): y is None; both are needed"),
        ({"data": (X, Y[:3])}, r"^data=\(x, y\): y is \(3,\), must be \(10,\)"),
        ({"data": (X, Y * 0.5)}, r"y is of float64, must be whole numbers; write y = numpy.unique"),
        (
            {"data": (X, np.where(np.arange(len(Y)) % 9, Y, np.nan))},
            rf"y has {-(-len(Y) // 9)} NaN of {len(Y)} values; leave these samples out",
        ),
        ({"data": (X, np.eye(2)[Y])}, r"y.argmax\(1\)$"),
        ({"data": (X, Y[:, None])}, r"y is \(10, 1\), must be \(10,\)"),
        ({"data": (X * np.nan, Y)}, r"^data=\(x, y\): x\[0\] has NaN or infinite values"),
        ({"data": (X, Y * 0)}, "y has the one class 0"),
        ({"data": (X[:, 0], Y)}, r"x is \(10,\), must be \(N, ...\)"),
        ({"data": (X[:0], Y[:0])}, r"x is \(0, 4\), must be"),
        ({"data": (Y.astype(str), Y)}, "x is of <U21, must be numbers"),
        ({"data": ([[1], [2, 3]], [0, 1])}, r"x cannot be read as an array .*type numpy.array"),
        ({"data": (torch.zeros(2, 3).bfloat16(), [0, 1])}, "x cannot be read .*BFloat16"),
        ({"data": (torch.zeros(2, 3, device="meta"), [0, 1])}, "x cannot be read as an array"),
        ({"data": (X, [None] * 10)}, "y is of object, must be numbers, or of classes texts"),
        ({"data": (X, ["a", None] * 5)}, "y is of object, must be numbers, or of classes texts"),
        ({"data": ({}, Y)}, "x is of object"),
        ({"data": (X, Y), "test": X}, "^test: must be"),
        (
            {"data": (X, Y), "test": (X[:, :2], Y)},
            r"^data=\(x, y\), test=\(x_test, y_test\): x is \(10, 4\), x_test \(10, 2\)",
        ),
        ({"data": (X, Y), "validation": (X, Y + 1)}, "y_val has the class 2, y has only 0, 1$"),
        ({"data": (X, Y), "test": (X, Y.astype(str))}, "y_test has the class 0, y has only 0, 1$"),
        ({"data": (X, Y), "test": (X, Y[:2])}, r"y_test is \(2,\), must be \(10,\)"),
        ({"data": (BYTES, Y), "test": (BYTES / 1.0, Y)}, "x is of uint8, x_test of float32"),
    ],
)
def test_faults(pairs: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        open_source(section(**pairs))
    assert "\n" not in str(caught.value)


def test_the_digest_is_of_names_types_shapes_and_values() -> None:
    others: list[dict[str, Any]] = [
        {"data": (X + 1e-6, Y)}, {"data": (X.astype(np.float64), Y)}, {"data": (X, 1 - Y)},
        {"data": (X.reshape(10, 2, 2), Y)}, {"data": (X, Y), "test": (X, Y)},
        {"data": (X[::-1], Y)}, {"data": (X, Y), "validation": (X, Y)},
        {"data": (X, Y.astype(str))},
    ]  # fmt: skip
    digests = {OwnArrays(**pairs).digest for pairs in ({"data": (X, Y)}, *others)}
    assert len(digests) == len(others) + 1
    assert OwnArrays(data=(X.copy(), Y.tolist())).digest in digests


@pytest.mark.slow
def test_nothing_stays_when_the_configuration_is_gone() -> None:
    own = OwnArrays(data=(X, Y))
    config = section(data=(X, Y)).holding(own)
    assert open_source(config) is open_source(config.model_copy(update={"batch_size": 3}))
    source = weakref.ref(open_source(config).train.features)
    gone = weakref.ref(own)
    del own, config
    gc.collect()
    assert gone() is None
    assert source() is None


def test_a_section_without_arrays_says_where_they_come_from() -> None:
    with pytest.raises(InputError, match=r"^data=arrays: .* call kindling.fit\(config, data="):
        open_source(compose("data=arrays").data)


def test_series_of_numbers_keep_their_shape(tmp_path: Path) -> None:
    """(N, T, F) are no pictures. Floats from 0 to 1 are, and get a channel."""
    series = np.random.default_rng(0).normal(size=(40, 5, 3)).astype(np.float32)
    labels = np.arange(40) % 2
    shapes = {}
    for name, x in (("numbers", series), ("pictures", np.abs(series) / 9)):
        config = compose("data=arrays", "trainer.max_epochs=1", "trainer=cpu")
        run = fit(config, tmp_path / name, data=(x, labels))
        trained = open_trained(run.folder)
        shapes[name] = trained.shape
        assert Model(trained).predict_proba(x).shape == (40, 2)
    assert shapes == {"numbers": (5, 3), "pictures": (1, 5, 3)}
