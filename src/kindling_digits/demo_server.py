"""The demo's server: one page and one model, only for this machine. It stores nothing."""

import base64
import io
import tempfile
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from kindling.config.measures import CLASSIFICATION
from kindling.inference.export.formats import (
    ANOTHER,
    FORMATS,
    ExportPlan,
    OnnxModel,
    default_output,
    input_shape,
    open_onnx,
)
from kindling.records.lookup import checkpoint_of, config_of, refuse_lightning_module
from kindling.system.errors import InputError, all_at_once, parsing
from kindling.system.extras import missing
from kindling.system.files import sha256
from kindling.system.installation import as_command
from kindling.system.page_server import PageHandler, PageServer, inline_scripts
from kindling.system.process import importing
from kindling.system.units import MIB
from kindling_digits.drawings import prepare

BODY_LIMIT = MIB  # bytes of a picture; the page sends about 3,000
SIDE_LIMIT = 1024  # pixels per side; the page sends 280


def demonstrate(path: Path, port: int, *, browser: bool) -> None:
    """Serves the model of a run folder or checkpoint file until a signal ends the server.

    Port 0 chooses a free port. Raises InputError with all faults for a path without a model, a port
    that cannot be used and missing packages; and for a model that does not take pictures.
    """
    faults = missing(as_command("demo"), "export", FORMATS["onnx"].packages)
    checkpoint = server = None
    try:
        checkpoint = checkpoint_of(path)
        if config := config_of(path):
            refuse_lightning_module(config.model.name, checkpoint)
        if config and config.task.name != CLASSIFICATION:
            raise InputError(
                f"{path}: was trained with task={config.task.name}, and the page shows classes; "
                f"type {as_command('predict')} {path} FILE"
            )
        if config and config.data.pictures is None:
            raise InputError(
                f"{path}: was trained on a table, data={config.data.name}, for which nothing is "
                f"drawn; type {as_command('predict')} {path} FILE.csv"
            )
    except InputError as error:
        faults.append(str(error))
    try:
        server = Server(port)
    except InputError as error:
        faults.append(str(error))
    if faults or checkpoint is None or server is None:
        if server is not None:
            server.server_close()
        raise all_at_once(faults, "nothing is served")
    with server:
        server.model = open_model(path, checkpoint)
        server.about = about(server.model, path)
        server.serve_until_stopped(path, browser=browser)


def open_model(path: Path, checkpoint: Path) -> OnnxModel:
    """The exported model beside the checkpoint, or a temporary export if that is absent or older.
    Raises InputError when the model does not take pictures, or cannot be exported."""
    exported = default_output(path, "onnx")
    reason = f"{exported} does not exist"
    if exported.is_file():
        try:
            model = open_onnx(exported, threads=1)
        except InputError as error:
            reason = str(error)
        else:
            if model.metadata.checkpoint_sha256 == sha256(checkpoint):
                require_pictures(model.metadata.shape, path)
                return model
            reason = f"{exported} was exported from an older checkpoint"
    keep = f"{as_command('export')} {path}{' --force' if exported.exists() else ''}"
    print(f"{reason}; exporting the model for this demo (to keep an export: {keep})", flush=True)
    with importing():
        from kindling.inference.export.export import export
        from kindling.records.loading import open_trained

    require_pictures(open_trained(checkpoint).shape, path)
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder) / "model.onnx"
        try:
            export(ExportPlan(checkpoint, "onnx", temporary))
        except InputError as error:
            reason = str(error).removesuffix(ANOTHER).replace(f"{temporary}:", "its ONNX model")
            raise InputError(f"{path}: cannot be shown: {reason}") from None
        return open_onnx(temporary, threads=1)


def require_pictures(shape: tuple[int, ...] | list[int], path: Path) -> None:
    if len(shape) != 3 or shape[0] != 1:
        raise InputError(
            f"{path}: its model takes features {tuple(shape)}, not grey pictures (1, H, W); name a "
            "run on data=mnist or data=digits"
        )


def about(model: OnnxModel, path: Path) -> dict[str, Any]:
    """The description of the model for the page."""
    metadata = model.metadata
    return {
        "labels": metadata.labels,
        "shape": input_shape(metadata.shape),
        "data": metadata.data,
        "run": str(path),
    }


def answer(model: OnnxModel, png: bytes) -> dict[str, Any]:
    """The model's answer to a drawing, light on dark, for the page.

    `probabilities` of the classes, None for an empty drawing; `agreement`, the share of a
    committee's votes whose members predict the most probable class, else None; `pixels`, the
    picture as the model gets it, base64 of H * W bytes, row by row; `drawings`, the number of
    separate drawings. Raises InputError unless `png` is a PNG of at most SIDE_LIMIT pixels a side.
    """
    height, width = model.metadata.input_shape
    with (
        parsing("the body is not a PNG picture"),
        Image.open(io.BytesIO(png), formats=["PNG"]) as image,
    ):
        if max(image.size) > SIDE_LIMIT:
            raise InputError(f"the picture is larger than {SIDE_LIMIT} by {SIDE_LIMIT} pixels")
        image.load()
        prepared = prepare(image, (height, width), "no")
    probabilities = agreed = None
    if not prepared.blank:
        inputs: np.ndarray[Any, Any] = prepared.pixels[None]
        if model.metadata.input_dtype == "float32":
            inputs = inputs.astype(np.float32) / np.float32(255)
        logits = model.logits(inputs)[0].astype(np.float64)
        weights = np.exp(logits - logits.max())
        probabilities = (weights / weights.sum()).tolist()
        if (members := model.metadata.members) is not None:
            votes = np.array([member.votes for member in members], np.float64)
            agree = model.member_log_probabilities(inputs)[0].argmax(-1) == logits.argmax()
            agreed = float(votes[agree].sum() / votes.sum())
    return {
        "probabilities": probabilities,
        "agreement": agreed,
        "pixels": base64.b64encode(prepared.pixels.tobytes()).decode(),
        "drawings": prepared.count,
    }


class Server(PageServer):
    """Set `model` and `about` before it serves."""

    model: OnnxModel
    about: dict[str, Any]

    def __init__(self, port: int) -> None:
        self.page = files(__package__).joinpath("demo.html").read_bytes()
        super().__init__(port, Handler, inline_scripts(self.page.decode()))


class Handler(PageHandler):
    """Answers GET / and /model and POST /predict."""

    server: Server

    def do_GET(self) -> None:  # noqa: N802
        match self.path:
            case "/":
                self.send_page(self.server.page)
            case "/model":
                self.send_json(HTTPStatus.OK, self.server.about)
            case _:
                self.refuse(HTTPStatus.NOT_FOUND, "use GET / or /model, or POST /predict")

    def do_POST(self) -> None:  # noqa: N802
        body = self.body("/predict", "image/png", BODY_LIMIT, "a picture")
        if body is not None:
            try:
                self.send_json(HTTPStatus.OK, answer(self.server.model, body))
            except InputError as error:
                self.refuse(HTTPStatus.BAD_REQUEST, str(error))
