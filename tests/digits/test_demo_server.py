"""The demo: what is drawn in a browser is what the model is asked, and nobody else may ask."""

import base64
import http.client
import io
import json
import math
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import urllib.request
import webbrowser
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from playwright.sync_api import Browser, FloatRect, Page

from kindling.config.compose import compose
from kindling.inference.export.export import export
from kindling.inference.export.formats import ANOTHER, ExportPlan, OnnxModel, plan
from kindling.inference.prediction import classify
from kindling.records import checkpoint
from kindling.records.folder import Member, Run
from kindling.records.loading import open_trained
from kindling.system import extras
from kindling.system.errors import InputError, Interrupted
from kindling.system.files import sha256
from kindling.system.page_server import ADDRESS
from kindling.training.fit import fit
from kindling_digits import demo_server as serving
from kindling_digits.demo_server import Server, about, answer, demonstrate, open_model
from kindling_digits.drawings import prepare
from tests.helpers.commands import ROOT, SMALL, Train
from tests.helpers.page_server import answering

# A zero, from its top, in parts of the paper's side.
ROUND = [
    (0.5 + 0.17 * math.sin(part * math.tau / 12), 0.5 - 0.28 * math.cos(part * math.tau / 12))
    for part in range(13)
]


@dataclass(frozen=True)
class Served:
    run: Run
    model: OnnxModel
    port: int
    url: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A run on the digits with its exported model, served in a thread."""
    folder = tmp_path_factory.mktemp("demo") / "run"
    run = fit(compose(*SMALL, "trainer.max_epochs=8"), folder)
    export(plan(folder, "onnx", None, force=False))
    model = open_model(folder, run.best_checkpoint)
    server = Server(0)
    server.model, server.about = model, about(model, folder)
    with answering(server):
        yield Served(run, model, server.server_address[1], server.url)


def png(image: Image.Image) -> bytes:
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def drawing() -> Image.Image:
    image = Image.new("L", (280, 280))
    ImageDraw.Draw(image).line([(x * 280, y * 280) for x, y in ROUND], 255, 21)
    return image


# --- in a browser ------------------------------------------------------------------------------


READ = """() => [...document.querySelectorAll("#classes li")].map((row) => [
    row.querySelector(".name").textContent, row.querySelector(".share").textContent,
    row.classList.contains("top"), row.querySelector(".bar").style.transform])"""
SETTLED = "() => !asking && !stale"


def paper(page: Page) -> FloatRect:
    box = page.locator("#paper").bounding_box()
    assert box is not None
    return box


@pytest.mark.slow
def test_a_drawn_stroke_moves_the_probabilities(
    browser: Browser, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = browser.new_page(viewport={"width": 1200, "height": 800})
    troubles: list[str] = []
    addresses: set[str] = set()
    bodies: list[bytes] = []

    def noted(model: OnnxModel, body: bytes) -> dict[str, Any]:
        bodies.append(body)
        return answer(model, body)

    monkeypatch.setattr(serving, "answer", noted)
    page.on("console", lambda message: troubles.append(message.text))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: addresses.add(request.url))
    page.goto(served.url)
    page.wait_for_selector("#classes li")
    empty = [[str(label), "", False, "translateX(-101%)"] for label in range(10)]
    assert page.evaluate(READ) == empty
    assert page.inner_text("#label") == "–"

    box = paper(page)
    corners = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in ROUND]
    page.mouse.move(*corners[0])
    page.mouse.down()
    page.wait_for_function("() => document.querySelector('#classes .top')")
    snapshots = [page.evaluate(READ)]
    for number, corner in enumerate(corners[1:], 1):
        page.mouse.move(*corner, steps=2)
        if number % 4 == 0:
            page.wait_for_function(SETTLED)
            snapshots.append(page.evaluate(READ))
    assert len({str(snapshot) for snapshot in snapshots}) == 4  # while the pen is down
    page.mouse.up()
    page.wait_for_function(SETTLED)

    # What stands there is what the model says of the picture that was sent last.
    found = answer(served.model, bodies[-1])
    shares = found["probabilities"]
    rows = page.evaluate(READ)
    assert [row[1] for row in rows] == [f"{100 * share:.1f} %" for share in shares]
    best = int(np.argmax(shares))
    assert best == 0
    assert [row[2] for row in rows] == [label == best for label in range(10)]
    bars = [float(re.findall(r"-?[\d.]+(?:e-\d+)?", row[3])[0]) for row in rows]
    assert bars == pytest.approx([101 * (share - 1) for share in shares], abs=1e-3)
    assert page.inner_text("#label") == "0"
    seen = page.evaluate(
        "() => [...document.getElementById('seen').getContext('2d')"
        ".getImageData(0, 0, 28, 28).data].filter((_, i) => i % 4 === 0)"
    )
    assert bytes(seen) == base64.b64decode(found["pixels"])
    assert max(seen) == 255
    page.wait_for_function(
        f"() => document.querySelector('[aria-live]').textContent === '0, {rows[0][1]}'"
    )

    # The keyboard reaches Clear.
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.id") == "clear"
    page.keyboard.press("Enter")
    assert page.evaluate(READ) == empty
    page.wait_for_function("() => document.querySelector('[aria-live]').textContent === ''")
    assert addresses == {served.url + path for path in ("/", "/model", "/predict")}
    assert troubles == []
    page.close()


@pytest.mark.slow
def test_two_drawings_are_reported(browser: Browser, served: Served) -> None:
    page = browser.new_page(viewport={"width": 1200, "height": 800})
    page.goto(served.url)
    page.wait_for_selector("#classes li")
    box = paper(page)
    for count, side in enumerate((0.25, 0.75), 1):
        page.mouse.move(box["x"] + side * box["width"], box["y"] + 0.2 * box["height"])
        page.mouse.down()
        page.mouse.move(box["x"] + side * box["width"], box["y"] + 0.8 * box["height"], steps=5)
        page.mouse.up()
        page.wait_for_function(SETTLED)
        told = page.inner_text("#sure")
        assert told.endswith(" %") if count == 1 else told.endswith(" %, 2 drawings")
    page.keyboard.press("Escape")
    assert page.inner_text("#sure") == ""
    page.close()


def test_a_finger_on_a_phone(browser: Browser, served: Served) -> None:
    context = browser.new_context(
        viewport={"width": 390, "height": 844}, has_touch=True, color_scheme="dark"
    )
    page = context.new_page()
    page.goto(served.url)
    page.wait_for_selector("#classes li")
    box = paper(page)
    assert box["width"] == box["height"] == 350
    assert page.evaluate("() => document.documentElement.scrollWidth") == 390
    page.touchscreen.tap(box["x"] + 100, box["y"] + 100)
    page.wait_for_function("() => document.querySelector('#classes .top')")
    ground = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(21, 18, 15)"
    context.close()


def test_the_page_says_when_the_server_has_ended(browser: Browser, served: Served) -> None:
    page = browser.new_page()
    page.goto(served.url)
    page.wait_for_selector("#classes li")
    page.route("**/predict", lambda route: route.abort())
    page.locator("#paper").click()
    page.wait_for_function("() => trouble && document.getElementById('trouble').textContent")
    assert "is the command still running?" in page.inner_text("[role=alert]")
    page.wait_for_function("() => !asking")  # a click has two requests
    page.unroute("**/predict")
    page.locator("#paper").click()
    page.wait_for_function("() => document.getElementById('trouble').textContent === ''")
    page.close()


@pytest.mark.slow
def test_the_page_says_when_the_server_does_not_answer(browser: Browser, served: Served) -> None:
    page = browser.new_page()
    page.add_init_script(
        "window.wait = AbortSignal.timeout;"
        "AbortSignal.timeout = (ms) => window.wait.call(AbortSignal, ms / 100);"
    )
    page.goto(served.url)
    page.wait_for_selector("#classes li")
    page.route("**/predict", lambda _: None)
    page.locator("#paper").click()
    page.wait_for_function("() => trouble && document.getElementById('trouble').textContent")
    assert "is the command still running?" in page.inner_text("[role=alert]")
    page.wait_for_function("() => !asking")
    page.unroute("**/predict")
    page.evaluate("AbortSignal.timeout = window.wait")  # a busy machine answers more slowly
    page.locator("#paper").click()
    page.wait_for_function("() => document.getElementById('trouble').textContent === ''")
    page.close()


# --- what it answers, and whom -----------------------------------------------------------------


def test_many_connections_wait_until_they_are_accepted() -> None:
    with Server(0) as server, ExitStack() as held:
        for _ in range(100):
            held.enter_context(socket.create_connection((ADDRESS, server.server_port), timeout=1))


def ask(
    served: Served, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, dict[str, str], Any]:
    """Sends exactly these headers, with `_` for `-` in names, and by default the right Host."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in {"Host": f"127.0.0.1:{served.port}", **headers}.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders(body)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    found = json.loads(content) if response.headers["Content-Type"] == "application/json" else None
    return response.status, dict(response.headers), found or content


def post(served: Served, body: bytes, **headers: str) -> tuple[int, Any]:
    given = {"Content_Type": "image/png", "Content_Length": str(len(body)), **headers}
    status, _, found = ask(served, "POST", "/predict", body, **given)
    return status, found


@pytest.mark.slow
def test_the_answer_has_the_models_probabilities(served: Served) -> None:
    status, found = post(served, png(drawing()))
    assert status == 200
    pixels = np.frombuffer(base64.b64decode(found["pixels"]), np.uint8).reshape(28, 28)
    assert np.array_equal(pixels, prepare(drawing(), (28, 28), "no").pixels)
    features = torch.from_numpy(pixels / np.float32(255)).view(1, 1, 28, 28)
    with torch.no_grad():
        expected = open_trained(served.run.folder).model(features).softmax(-1)[0]
    assert found["probabilities"] == pytest.approx(expected.tolist(), abs=1e-6)
    assert sum(found["probabilities"]) == pytest.approx(1)
    assert found["drawings"] == 1


def test_a_model_of_bytes_gets_bytes(served: Served) -> None:
    asked = []

    class Session:
        def run(self, outputs: list[str], inputs: dict[str, Any]) -> list[Any]:
            asked.append(inputs["inputs"])
            return [np.array([[0.0, np.log(3.0)]])]

    metadata = served.model.metadata.model_copy(update={"input_dtype": "uint8"})
    found = answer(OnnxModel(Session(), metadata), png(drawing()))
    assert found["probabilities"] == pytest.approx([0.25, 0.75])
    assert asked[0].dtype == np.uint8
    assert asked[0].tobytes() == base64.b64decode(found["pixels"])


def test_the_agreement_of_a_committee(served: Served) -> None:
    """Members with 1, 2 and 5 votes; the last one predicts otherwise."""

    class Session:
        def run(self, names: list[str], inputs: dict[str, Any]) -> list[np.ndarray]:
            if names == ["members"]:
                members = [[0.1, 0.9], [0.2, 0.8], [0.6, 0.4]]
                return [np.log([members])]
            return [np.array([[0.0, np.log(3.0)]])]

    members = [Member(config={}, votes=votes) for votes in (1, 2, 5)]
    metadata = served.model.metadata.model_copy(update={"members": members})
    found = answer(OnnxModel(Session(), metadata), png(drawing()))
    assert found["agreement"] == 3 / 8
    assert answer(served.model, png(drawing()))["agreement"] is None


@pytest.mark.slow
def test_the_demo_exports_a_committee(committee: Run, tmp_path: Path) -> None:
    """Its page gets the votes of the exported model."""
    copy = tmp_path / "committee"
    shutil.copytree(committee.folder, copy)
    model = open_model(copy, Run(copy).best_checkpoint)
    found = answer(model, png(drawing()))
    trained = open_trained(copy)
    pixels = np.frombuffer(base64.b64decode(found["pixels"]), np.uint8).reshape(1, 28, 28)
    (guess,) = classify(trained, pixels.copy())
    assert guess.agreement == pytest.approx(found["agreement"])
    assert guess.probability == pytest.approx(max(found["probabilities"]), rel=1e-4)


def test_an_empty_paper(served: Served) -> None:
    status, found = post(served, png(Image.new("L", (280, 280))))
    assert (status, found["probabilities"], found["drawings"]) == (200, None, 0)
    assert base64.b64decode(found["pixels"]) == bytes(784)


def test_the_page_and_its_security_headers(served: Served) -> None:
    status, headers, content = ask(served, "GET", "/")
    assert status == 200
    assert content == (ROOT / "src/kindling_digits/demo.html").read_bytes()
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert not re.findall(rb"https?://(?!www\.w3\.org/2000/svg)", content)
    status, _, told = ask(served, "GET", "/model")
    assert told == {
        "labels": [*"0123456789"],
        "shape": [28, 28],
        "data": "digits",
        "run": str(served.run.folder),
    }
    assert ask(served, "GET", "/../pyproject.toml")[0] == 404


def test_other_hosts_and_origins_are_refused(served: Served) -> None:
    here = f"localhost:{served.port}"
    assert ask(served, "GET", "/", Host=here)[0] == 200
    assert ask(served, "GET", "/", Origin=f"http://{here}")[0] == 200
    hosts = ("evil.example", f"evil.example:{served.port}", "127.0.0.1", f"{here}.evil.example", "")
    for host in hosts:
        status, _, told = ask(served, "GET", "/", Host=host)
        assert (status, told) == (403, {"error": f"the page is only at {served.url}"})
        assert post(served, png(drawing()), Host=host)[0] == 403
    for origin in ("http://evil.example", "null", "https://127.0.0.1", f"http://{here}.example"):
        status, told = post(served, png(drawing()), Origin=origin)
        assert (status, told) == (403, {"error": "the server answers only its own page"})


def bomb() -> bytes:
    """A PNG whose header claims 30,000 by 30,000 pixels."""
    content = bytearray(png(Image.new("1", (8, 8))))
    content[16:24] = struct.pack(">II", 30_000, 30_000)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    return bytes(content)


def test_bodies_are_bounded_and_checked(served: Served) -> None:
    whole = png(drawing())
    long = str(served.model.metadata.labels)  # any text
    cases: list[tuple[bytes, dict[str, str], int, str]] = [
        (whole, {"Content_Type": "text/plain"}, 415, "Content-Type must be image/png"),
        (whole, {"Content_Length": "-1"}, 411, "Content-Length is missing"),
        (whole, {"Content_Length": long}, 411, "Content-Length is missing"),
        (b"", {"Content_Length": str(2**20 + 1)}, 413, "may have 1,048,576 bytes"),
        (b"", {"Content_Length": "9" * 5000}, 413, "may have 1,048,576 bytes"),
        (b"", {}, 400, "the body is not a PNG picture"),
        (whole[:-30], {}, 400, "the body is not a PNG picture"),
        (b"GIF89a" + whole, {}, 400, "the body is not a PNG picture"),
        (png(Image.new("L", (1025, 3))), {}, 400, "is larger than 1024 by 1024 pixels"),
        (
            bomb(),
            {},
            400,
            "the body is not a PNG picture .Image size .900000000 pixels. exceeds limit",
        ),
    ]
    for body, headers, status, message in cases:
        found, told = post(served, body, **headers)
        assert found == status
        assert re.search(message, told["error"])
    assert post(served, whole)[0] == 200  # and goes on


# --- which model, which port -------------------------------------------------------------------


@pytest.mark.slow
def test_an_export_of_the_same_weights_is_used(
    served: Served,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run(tmp_path / "run")
    shutil.copytree(served.run.folder, run.folder)
    exported = run.folder / "model.onnx"
    before = exported.read_bytes()

    def refuse(plan: ExportPlan) -> None:
        raise InputError(f"{plan.output}: was not written: no{ANOTHER}")

    with monkeypatch.context() as patch:
        patch.setattr("kindling.inference.export.export.export", refuse)
        fresh = open_model(run.folder, run.best_checkpoint)
        assert fresh.metadata == served.model.metadata
        assert capsys.readouterr().out == ""
        command = f"python -m src.export {run.folder}"
        keeps = f"exporting the model for this demo (to keep an export: {command}"
        exported.write_bytes(before[:1000])
        with pytest.raises(
            InputError, match=r"cannot be shown: its ONNX model was not written: no$"
        ):
            open_model(run.folder, run.best_checkpoint)
        told = capsys.readouterr().out
        assert told.startswith(f"{exported}: cannot be read as ONNX")
        assert told.endswith(f"; {keeps} --force)\n")
        exported.unlink()
        with pytest.raises(InputError):
            open_model(run.folder, run.best_checkpoint)
        assert capsys.readouterr().out == f"{exported} does not exist; {keeps})\n"

    exported.write_bytes(before)
    content = checkpoint.read(run.best_checkpoint)
    for weight in content["state_dict"].values():
        weight.mul_(2)
    checkpoint.write(content, run.best_checkpoint)
    newer = open_model(run.folder, run.best_checkpoint)
    told = capsys.readouterr().out
    assert f"{exported} was exported from an older checkpoint; {keeps} --force" in told
    assert newer.metadata.checkpoint_sha256 == sha256(run.best_checkpoint)
    inputs = np.ones((1, 28, 28), np.float32)
    with torch.no_grad():
        expected = open_trained(run.folder).model(torch.from_numpy(inputs[None]))
    assert newer.logits(inputs) == pytest.approx(expected.numpy(), rel=1e-4)
    assert not np.allclose(served.model.logits(inputs), expected, rtol=0.1)
    assert exported.read_bytes() == before


def test_a_model_that_does_not_take_pictures(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train("data=toy", "data.factor=4")
    monkeypatch.setattr("kindling.inference.export.export.export", None)
    with pytest.raises(InputError, match=r"takes features \(2,\), not grey pictures"):
        open_model(run.folder, run.best_checkpoint)


def test_a_model_of_a_table_is_refused_before_it_is_exported(train: Train) -> None:
    run = train("data=toy", "data.factor=4")
    with pytest.raises(InputError) as caught:
        demonstrate(run.folder, 0, browser=False)
    assert f"type python -m src.predict {run.folder} FILE.csv" in str(caught.value)


def test_a_port_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(InputError, match=rf"^--port {port}: is in use; type --port \d+$") as e:
            Server(port)
        Server(int(str(e.value).rpartition(" ")[2])).server_close()
        monkeypatch.setattr(extras, "_installed", lambda _: False)
        with pytest.raises(InputError) as raised:
            demonstrate(tmp_path / "nowhere", port, browser=False)
    lines = str(raised.value).splitlines()
    assert lines[0] == "3 faults, nothing is served"
    assert [line.partition(": ")[0].strip() for line in lines[1:]] == [
        "python -m src.demo",
        str(tmp_path / "nowhere"),
        f"--port {port}",
    ]
    for wrong in (-1, 70_000):
        with pytest.raises(InputError, match=rf"^--port {wrong}: must be from 1 to 65535"):
            Server(wrong)


def test_the_address_is_printed_and_opened(
    served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    there = threading.Event()

    def open_browser(url: str) -> None:
        opened.append(url)
        there.set()

    def serve(self: Server) -> None:
        assert there.wait(10)
        raise Interrupted(signal.SIGINT)

    monkeypatch.setattr(webbrowser, "open", open_browser)
    monkeypatch.setattr(Server, "serve_forever", serve)
    demonstrate(served.run.folder, 0, browser=True)
    told = capsys.readouterr().out
    assert told == f"{served.run.folder} is served at {opened[0]} (Ctrl-C ends it)\nstopped\n"


def test_the_command_starts_without_torch_and_ends_in_good_order(
    served: Served, tmp_path: Path
) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "src.demo", str(served.run.folder)]
    with (tmp_path / "imported").open("w") as errors:
        started = subprocess.Popen(
            [*command, "--port", "0", "--no-browser"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert started.stdout is not None
    with started:
        url = started.stdout.readline().split(" is served at ")[1].split()[0]
        directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with directly.open(f"{url}/model") as response:
            assert json.load(response)["data"] == "digits"
        started.send_signal(signal.SIGINT)
        assert started.stdout.read() == "stopped\n"
    assert started.returncode == 0
    imported = re.findall(r"\| +(\S+)$", (tmp_path / "imported").read_text(), re.MULTILINE)
    assert "onnxruntime" in imported
    assert "torch" not in imported
