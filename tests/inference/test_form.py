"""The form of a table's model: what is filled in is what the model is asked."""

import datetime
import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser

from kindling.config.compose import compose
from kindling.inference.form import Form, Server
from kindling.inference.model import Model, load
from kindling.records.loading import open_trained
from kindling.system.errors import InputError
from kindling.system.page_server import ADDRESS
from kindling.system.units import MIB
from kindling.training.fit import fit
from tests.helpers.page_server import answering

ROWS = 120
DRAW = np.random.default_rng(2)


def _trained(folder: Path, task: str = "classification") -> Model:
    """Of a table with a number that has gaps, a text, and a date."""
    size, colour = DRAW.normal(10, 2, ROWS).round(2), DRAW.choice(["red", "<b>blue</b>"], ROWS)
    first = datetime.date(2024, 1, 1)
    days = [first + datetime.timedelta(int(day)) for day in DRAW.integers(0, 300, ROWS)]
    price = size + 3 * (colour == "red") + DRAW.normal(0, 0.3, ROWS)
    label = price.round(2) if task == "regression" else np.where(price > 11.5, "dear", "cheap")
    lines = ["size,colour,day,price"]
    for number, row in enumerate(zip(size, colour, days, label, strict=True)):
        cells = ["" if number % 30 == 7 else str(row[0]), *map(str, row[1:])]
        lines.append(",".join(cells))
    (folder / "t.csv").write_text("\n".join(lines))
    config = compose(
        "data=csv", f"data.path={folder / 't.csv'}", "data.target=price", f"task={task}",
        "trainer=cpu", "trainer.max_epochs=5",
    )  # fmt: skip
    return load(fit(config, folder / "run").folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return _trained(tmp_path_factory.mktemp("classes"))


@pytest.fixture(scope="module")
def served(model: Model) -> Iterator[Server]:
    with answering(Server(0, Form(model))) as server:
        yield server


def _post(server: Server, body: bytes, **headers: str) -> tuple[int, dict[str, Any]]:
    usual = {"Content-Type": "application/json"} | headers
    address = ADDRESS, server.server_address[1]
    with closing(http.client.HTTPConnection(*address, timeout=30)) as connection:
        connection.request("POST", "/predict", body, usual)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


ROW = {"size": "9.5", "colour": "red", "day": "2024-05-01"}


def test_an_answer_is_that_of_the_model(served: Server, model: Model) -> None:
    status, answer = _post(served, json.dumps(ROW).encode())
    assert status == 200
    expected = model.predict_proba({name: [text] for name, text in ROW.items()})
    assert answer == {"probabilities": expected[0].tolist(), "single": True}
    _, without = _post(served, json.dumps(ROW | {"size": ""}).encode())
    assert without["probabilities"] != answer["probabilities"]


def test_numbers_have_an_interval(tmp_path: Path) -> None:
    model = _trained(tmp_path, "regression")
    form = Form(model)
    columns = {name: [text] for name, text in ROW.items()}
    answer = form.answer(ROW)
    assert answer["numbers"] == pytest.approx([model.predict(columns)[0]])
    low, high = model.interval(columns)
    assert answer["interval"][0] == pytest.approx((low[0], high[0]))
    (tmp_path / "t.csv").unlink()
    assert Form(model).answer(ROW).keys() == {"numbers"}


def test_fields_are_what_training_saw(model: Model) -> None:
    size, colour, day = Form(model).about["fields"]
    assert size["kind"] == "number"
    assert size["gaps"]
    low, high = size["ends"]
    assert low < float(size["value"]) < high
    assert colour["choices"] == ["<b>blue</b>", "red"]
    assert colour["others"]
    assert day["kind"] == "date"
    assert "2024-01-01" < day["value"] < "2024-12-31"
    usual = {field["name"]: field["value"] for field in (size, colour, day)}
    assert sum(Form(model).answer(usual)["probabilities"]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("body", "headers", "status", "told"),
    [
        (b"{", {}, 400, "the body is not JSON"),
        (b"[1]", {}, 400, "must be an object with a text for each column"),
        (b'{"size": 3}', {}, 400, "must be an object with a text for each column"),
        (b'{"size": "3"}', {}, 400, "there is no column colour"),
        (json.dumps(ROW | {"size": "many"}).encode(), {}, 400, "column size"),
        (b"\xff\xfe", {}, 400, "the body is not JSON"),
        (b"[" * 100_000, {}, 400, "the body is not JSON"),
        (b"{}", {"Content-Type": "text/plain"}, 415, "must be application/json"),
        (b"{}", {"Content-Length": str(MIB + 1)}, 413, "a row may have"),
        (b"{}", {"Origin": "http://evil.example"}, 403, "answers only its own page"),
        (b"{}", {"Host": "evil.example"}, 403, "the page is only at"),
    ],
)
def test_other_requests_are_refused(
    served: Server, body: bytes, headers: dict[str, str], status: int, told: str
) -> None:
    found, answer = _post(served, body, **headers)
    assert found == status
    assert told in answer["error"]


@pytest.mark.slow
def test_the_page(served: Server, model: Model, browser: Browser) -> None:
    """As a user changes fields; texts of the table are shown as texts."""
    page = browser.new_page()
    faults: list[str] = []
    page.on("console", lambda message: faults.append(message.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(served.url)
    page.wait_for_selector(".row.best")
    assert page.locator("select option").all_inner_texts()[:2] == ["<b>blue</b>", "red"]

    def shown() -> dict[str, str]:
        rows = page.locator(".row").all()
        return {row.locator("span").first.inner_text(): row.locator("span").last.inner_text()
                for row in rows}  # fmt: skip

    for size, colour in (("4", "red"), ("16", "red"), ("16", "<b>blue</b>")):
        page.select_option("select", colour)
        with page.expect_response("**/predict"):
            page.fill("input[name=size]", size)
        page.wait_for_timeout(100)
        row = {"size": [size], "colour": [colour], "day": [page.input_value("input[name=day]")]}
        shares = model.predict_proba(row)[0]
        assert shown() == {
            label: f"{100 * share:.1f}%" for label, share in zip(model.labels, shares, strict=True)
        }
    with page.expect_response("**/predict"):
        page.fill("input[name=size]", "sixteen")
    # As a function: a text would be evaluated again and again, which the page's policy refuses.
    page.wait_for_function("() => document.getElementById('error').textContent.includes('size')")
    assert [fault for fault in faults if "400" not in fault] == []
    page.close()


def test_a_model_of_pictures_has_no_form(tmp_path: Path) -> None:
    config = compose("data=digits", "trainer=cpu", "trainer.max_epochs=1")
    trained = open_trained(fit(config, tmp_path / "run").folder)
    with pytest.raises(InputError, match="takes no rows of a table"):
        Form(Model(trained))
