"""The demo's server: one page and one model, only for this machine.

The server listens on 127.0.0.1 and answers only requests to 127.0.0.1 or localhost that come from
its own page, so that no page of the web can reach it. It stores nothing.
"""

import base64
import errno
import io
import json
import socket
import socketserver
import sys
import tempfile
import threading
import webbrowser
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from src.inference.drawings import prepare
from src.inference.formats import ANOTHER, FORMATS, Plan, default_output, input_shape
from src.inference.onnx_model import OnnxModel, open_onnx
from src.runs.folder import checkpoint_of
from src.system.errors import InputError, Interrupted, all_at_once, parsing
from src.system.extras import missing
from src.system.files import MIB, sha256
from src.system.process import importing

ADDRESS = "127.0.0.1"
BODY_LIMIT = MIB  # bytes of a picture; the page sends about 3,000
SIDE_LIMIT = 1024  # pixels per side; the page sends 280
IDLE = 60  # seconds without a request before a connection is closed
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def demonstrate(path: Path, port: int, *, browser: bool) -> None:
    """Serves the model of a run folder or checkpoint file until a signal ends the server.

    Port 0 chooses a free port. Raises InputError with all faults for a path without a model, a port
    that cannot be used and missing packages; and for a model that does not take pictures.
    """
    faults = missing("src.demo", "export", FORMATS["onnx"].packages)
    checkpoint = server = None
    try:
        checkpoint = checkpoint_of(path)
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
        try:
            print(f"{path} is served at {server.url} (Ctrl-C ends it)", flush=True)
            if browser:
                threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
            server.serve_forever()
        except Interrupted:
            print("stopped")


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
            if model.description.checkpoint_sha256 == sha256(checkpoint):
                require_pictures(model.description.shape, path)
                return model
            reason = f"{exported} was exported from an older checkpoint"
    keep = f"python -m src.export {path}{' --force' if exported.exists() else ''}"
    print(f"{reason}; exporting the model for this demo (to keep an export: {keep})", flush=True)
    with importing():
        from src.inference.exporters import export
        from src.runs.loading import open_trained

    require_pictures(open_trained(checkpoint).shape, path)
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder) / "model.onnx"
        try:
            export(Plan(checkpoint, "onnx", temporary))
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
    description = model.description
    return {
        "labels": description.labels,
        "shape": input_shape(description.shape),
        "data": description.data,
        "run": str(path),
    }


def answer(model: OnnxModel, png: bytes) -> dict[str, Any]:
    """The model's answer to a drawing, light on dark, for the page.

    `probabilities` of the classes, None for an empty drawing; `pixels`, the picture as the model
    gets it, base64 of H * W bytes, row by row; `drawings`, the number of separate drawings. Raises
    InputError unless `png` is a PNG of at most SIDE_LIMIT pixels per side.
    """
    height, width = model.description.input_shape
    with (
        parsing("the body is not a PNG picture"),
        Image.open(io.BytesIO(png), formats=["PNG"]) as image,
    ):
        if max(image.size) > SIDE_LIMIT:
            raise InputError(f"the picture is larger than {SIDE_LIMIT} by {SIDE_LIMIT} pixels")
        image.load()
        prepared = prepare(image, (height, width), "no")
    probabilities = None
    if not prepared.blank:
        inputs: np.ndarray[Any, Any] = prepared.pixels[None]
        if model.description.input_dtype == "float32":
            inputs = inputs.astype(np.float32) / np.float32(255)
        logits = model.logits(inputs)[0].astype(np.float64)
        weights = np.exp(logits - logits.max())
        probabilities = (weights / weights.sum()).tolist()
    pixels = base64.b64encode(prepared.pixels.tobytes()).decode()
    return {"probabilities": probabilities, "pixels": pixels, "drawings": prepared.count}


class Server(ThreadingHTTPServer):
    """An HTTP server, bound to its port. Set `model` and `about` before it serves."""

    daemon_threads = True
    request_queue_size = 128  # connections that wait to be accepted; 5 by default
    model: OnnxModel
    about: dict[str, Any]

    def __init__(self, port: int) -> None:
        """Raises InputError when the port cannot be used."""
        try:
            super().__init__((ADDRESS, port), Handler)
        except (OSError, OverflowError) as error:
            raise InputError(_port_fault(port, error)) from None
        self.page = files(__package__).joinpath("demo.html").read_bytes()
        port = self.server_address[1]
        names = ("127.0.0.1", "localhost")
        self.hosts = {f"{name}:{port}" for name in names} | (set(names) if port == 80 else set())
        self.origins = {f"http://{host}" for host in self.hosts}
        self.url = f"http://{ADDRESS}:{port}"

    def server_bind(self) -> None:
        """Skips HTTPServer's look-up of this machine's name, which may wait for a network."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores connections that a closed page breaks off."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def _port_fault(port: int, error: Exception) -> str:
    if isinstance(error, OverflowError):
        return f"--port {port}: must be from 1 to 65535, or 0 for a free port; type --port 8000"
    assert isinstance(error, OSError)
    if error.errno == errno.EADDRINUSE:
        return f"--port {port}: is in use; type --port {_free_port(port)}"
    return f"--port {port}: cannot be used ({error.strerror}); type --port {_free_port(8000)}"


def _free_port(near: int) -> int:
    """The first free port from `near` on, or any free port."""
    for port in (*range(near, min(near + 50, 65536)), 0):
        with suppress(OSError), socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((ADDRESS, port))
            return int(trial.getsockname()[1])
    return near


class Handler(BaseHTTPRequestHandler):
    """Answers GET / and /model and POST /predict; errors are in JSON."""

    protocol_version = "HTTP/1.1"  # keeps the connection: a drawing sends many requests a second
    server_version, sys_version = "Kindling", ""
    timeout = IDLE
    disable_nagle_algorithm = True
    server: Server

    def do_GET(self) -> None:
        if not self._allowed():
            return
        match self.path:
            case "/":
                self._send(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
            case "/model":
                self._send_json(HTTPStatus.OK, self.server.about)
            case _:
                self._refuse(HTTPStatus.NOT_FOUND, "use GET / or /model, or POST /predict")

    def do_POST(self) -> None:
        if not self._allowed():
            return
        length = self.headers.get("Content-Length", "")
        if self.path != "/predict":
            self._refuse(HTTPStatus.NOT_FOUND, "use POST /predict")
        elif self.headers.get("Content-Type") != "image/png":
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Type must be image/png")
        elif not (length.isascii() and length.isdigit()):
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "Content-Length is missing")
        elif len(length) > 9 or int(length) > BODY_LIMIT:
            self._refuse(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a picture may have {BODY_LIMIT:,} bytes"
            )
        else:
            body = self.rfile.read(int(length))
            try:
                self._send_json(HTTPStatus.OK, answer(self.server.model, body))
            except InputError as error:
                self._refuse(HTTPStatus.BAD_REQUEST, str(error))

    def _allowed(self) -> bool:
        """Whether the request names this machine and comes from the demo's own page."""
        hosts, origins = self.headers.get_all("Host", []), self.headers.get_all("Origin", [])
        if len(hosts) != 1 or hosts[0] not in self.server.hosts:
            self._refuse(HTTPStatus.FORBIDDEN, f"the demo is only at {self.server.url}")
            return False
        if not self.server.origins.issuperset(origins):
            self._refuse(HTTPStatus.FORBIDDEN, "the demo answers only its own page")
            return False
        return True

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        """Sends an error and ends the connection, because the body may be unread."""
        self.close_connection = True
        self._send_json(status, {"error": reason})

    def _send_json(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        self._send(status, json.dumps(content).encode(), "application/json")

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        """Logs nothing: a line per stroke would hide the server's address."""
