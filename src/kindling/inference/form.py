"""A form for the model of a table: one page and one model, only for this machine. Each change of a
field asks the model. It stores nothing."""

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Any

from kindling.config.measures import CLASSIFICATION, REGRESSION
from kindling.data.tables.columns import AnyColumn, DateColumn, NumberColumn, TextColumn
from kindling.data.tables.table import as_table
from kindling.inference.logits import answer
from kindling.inference.model import Model
from kindling.inference.regression import interval_of
from kindling.inference.samples import as_split
from kindling.records.loading import open_trained
from kindling.system.errors import InputError, parsing
from kindling.system.page_server import PageHandler, PageServer, inline_scripts
from kindling.system.units import MIB

MOST_FIELDS = 200


def serve_form(path: Path, port: int, *, browser: bool) -> None:
    """Serves the model of a run folder or checkpoint file until a signal ends the server. Port 0
    chooses a free port. Raises InputError for a path without a model, for a model that takes no
    rows of a table, and for a port that cannot be used."""
    form = Form(Model(open_trained(path)))
    with Server(port, form) as server:
        server.serve_until_stopped(path, browser=browser)


class Form:
    """The fields of a model, and its answers."""

    def __init__(self, model: Model) -> None:
        """Raises InputError for a model that takes no rows of a table, or too many columns."""
        self.model, trained = model, model.trained
        if trained.columns is None:
            raise InputError(f"{trained.checkpoint}: takes no rows of a table")
        self.columns: Sequence[AnyColumn] = [own[0][0] for own in trained.columns.by_name.values()]
        if len(self.columns) > MOST_FIELDS:
            raise InputError(
                f"{trained.checkpoint}: has {len(self.columns):,} columns, too many for a form; "
                "type predict with a file"
            )
        self.interval = None
        if trained.config.task.name == REGRESSION:
            with suppress(InputError):  # its data are not here, or too few were held out
                self.interval = interval_of(trained)

    @property
    def about(self) -> dict[str, Any]:
        """The description of the model for the page."""
        trained = self.model.trained
        return {
            "run": str(trained.checkpoint.parent.parent),
            "target": ", ".join(getattr(trained.config.data, "targets", [])),
            "labels": self.model.labels,
            "fields": [*map(_field, self.columns)],
        }

    def answer(self, row: Any) -> dict[str, Any]:
        """The answer to the cells of a row by the names of columns: `probabilities` of the labels,
        or `numbers` and, where it is known, the ends of their `interval`. Raises InputError for
        cells that the model does not take."""
        if not isinstance(row, dict) or not all(isinstance(text, str) for text in row.values()):
            raise InputError("the row must be an object with a text for each column")
        columns = {name: [text] for name, text in row.items()}
        trained = self.model.trained
        if trained.config.task.name != REGRESSION:
            (shares,) = self.model.predict_proba(columns).tolist()
            single = trained.config.task.name == CLASSIFICATION
            return {"probabilities": shares, "single": single}
        found = answer(trained, as_split(trained, self.model.prepared(columns)))
        numbers: dict[str, Any] = {"numbers": found.values[0].tolist()}
        if self.interval is not None:
            low, high = self.interval.around(*found.ends)
            numbers["interval"] = [*zip(low[0].tolist(), high[0].tolist(), strict=True)]
        return numbers


def _field(column: AnyColumn) -> dict[str, Any]:
    """What a field shows, and what is in it at first: what is usual in training."""
    empty = column.cells(as_table({column.name: [""]}), [])
    about: dict[str, Any] = {"name": column.name, "gaps": not column.fault(empty)}
    match column:
        case NumberColumn():
            usual = column.mean if column.fill is None else column.fill
            ends = (column.low, column.high)
            return {**about, "kind": "number", "value": f"{usual:.6g}", "ends": ends}
        case TextColumn():
            return {**about, "kind": "category", "value": column.categories[0],
                    "choices": column.categories, "others": column.others}  # fmt: skip
        case DateColumn():
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=round(column.mean))
            shown = moment.replace(tzinfo=None)
            iso = column.form == "iso"
            value = shown.date().isoformat() if iso else shown.strftime(column.form)
            return {**about, "kind": "date", "value": value}


class Server(PageServer):
    def __init__(self, port: int, form: Form) -> None:
        self.form, self.page = form, files(__package__).joinpath("form.html").read_bytes()
        super().__init__(port, Handler, inline_scripts(self.page.decode()))


class Handler(PageHandler):
    """Answers GET / and /model and POST /predict."""

    server: Server

    def do_GET(self) -> None:  # noqa: N802
        match self.path:
            case "/":
                self.send_page(self.server.page)
            case "/model":
                self.send_json(HTTPStatus.OK, self.server.form.about)
            case _:
                self.refuse(HTTPStatus.NOT_FOUND, "use GET / or /model, or POST /predict")

    def do_POST(self) -> None:  # noqa: N802
        body = self.body("/predict", "application/json", MIB, "a row")
        if body is not None:
            try:
                with parsing("the body is not JSON"):
                    row = json.loads(body)
                self.send_json(HTTPStatus.OK, self.server.form.answer(row))
            except InputError as error:
                self.refuse(HTTPStatus.BAD_REQUEST, str(error))
