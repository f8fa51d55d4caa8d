"""A server of one page, only for this machine.

The server listens on 127.0.0.1 and answers only requests to 127.0.0.1 or localhost that come from
its own page, so that no page of the web can reach it. The page may run only the scripts that it was
written with.
"""

import base64
import errno
import hashlib
import json
import re
import socket
import socketserver
import sys
import threading
import webbrowser
from collections.abc import Iterable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kindling.system.errors import InputError, Interrupted

ADDRESS = "127.0.0.1"
IDLE = 60  # seconds without a request before a connection is closed
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class PageServer(ThreadingHTTPServer):
    """An HTTP server, bound to its port. The browser runs the scripts `scripts` and no others."""

    daemon_threads = True
    request_queue_size = 128  # connections that wait to be accepted; 5 by default

    def __init__(self, port: int, handler: type["PageHandler"], scripts: Iterable[str]) -> None:
        """Port 0 chooses a free port. Raises InputError when the port cannot be used."""
        try:
            super().__init__((ADDRESS, port), handler)
        except (OSError, OverflowError) as error:
            raise InputError(_port_fault(port, error)) from None
        port = self.server_address[1]
        names = {ADDRESS, "localhost"}
        self.hosts = {f"{name}:{port}" for name in names} | (names if port == 80 else set())
        self.origins = {f"http://{host}" for host in self.hosts}
        self.url = f"http://{ADDRESS}:{port}"
        self.policy = _policy(scripts)

    def server_bind(self) -> None:
        """Skips HTTPServer's look-up of this machine's name, which may wait for a network."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores connections that a closed page breaks off."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def serve_until_stopped(self, name: object, *, browser: bool = False) -> None:
        """Prints the address of what is served, and serves until a signal comes."""
        try:
            print(f"{name} is served at {self.url} (Ctrl-C ends it)", flush=True)
            if browser:
                threading.Thread(target=webbrowser.open, args=(self.url,), daemon=True).start()
            self.serve_forever()
        except Interrupted:
            print("stopped")


def inline_scripts(page: str) -> list[str]:
    """The scripts in the text of a page."""
    return re.findall(r"<script>(.*?)</script>", page, re.DOTALL)


def _policy(scripts: Iterable[str]) -> str:
    """The Content-Security-Policy of a page with these scripts."""
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


def _port_fault(port: int, error: OSError | OverflowError) -> str:
    if isinstance(error, OverflowError):
        return f"--port {port}: must be from 1 to 65535, or 0 for a free port; type --port 8000"
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


class PageHandler(BaseHTTPRequestHandler):
    """Answers allowed requests by `do_GET` and `do_POST` of its class; errors are in JSON."""

    protocol_version = "HTTP/1.1"  # keeps the connection: a page may send many requests a second
    server_version, sys_version = "Kindling", ""
    timeout = IDLE
    disable_nagle_algorithm = True
    server: PageServer

    def do_POST(self) -> None:
        self.refuse(HTTPStatus.NOT_FOUND, "use GET /")

    def parse_request(self) -> bool:
        """Refuses a request that names another machine or comes from another page."""
        if not super().parse_request():
            return False
        hosts, origins = self.headers.get_all("Host", []), self.headers.get_all("Origin", [])
        if len(hosts) != 1 or hosts[0] not in self.server.hosts:
            self.refuse(HTTPStatus.FORBIDDEN, f"the page is only at {self.server.url}")
            return False
        if not self.server.origins.issuperset(origins):
            self.refuse(HTTPStatus.FORBIDDEN, "the server answers only its own page")
            return False
        # As browsers tell it: a link elsewhere may lead here, but another page may not ask.
        site, mode = (self.headers.get(f"Sec-Fetch-{name}") for name in ("Site", "Mode"))
        if site not in (None, "none", "same-origin") and mode != "navigate":
            self.refuse(HTTPStatus.FORBIDDEN, "the server answers only its own page")
            return False
        return True

    def body(self, path: str, kind: str, limit: int, what: str) -> bytes | None:
        """The body of a request to POST `path` of this content type, of at most `limit` bytes; None
        after any other request was refused. `what` is the body in a message."""
        length = self.headers.get("Content-Length", "")
        if self.path != path:
            self.refuse(HTTPStatus.NOT_FOUND, f"use POST {path}")
        elif self.headers.get("Content-Type") != kind:
            self.refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Content-Type must be {kind}")
        elif not (length.isascii() and length.isdigit()):
            self.refuse(HTTPStatus.LENGTH_REQUIRED, "Content-Length is missing")
        elif len(length) > 9 or int(length) > limit:
            told = f"{what} may have {limit:,} bytes"
            self.refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, told)
        else:
            return self.rfile.read(int(length))
        return None

    def refuse(self, status: HTTPStatus, reason: str) -> None:
        """Sends an error and ends the connection, because the body may be unread."""
        self.close_connection = True
        self.send_json(status, {"error": reason})

    def send_page(self, content: bytes, policy: str | None = None) -> None:
        """`policy`: the Content-Security-Policy of another page than that of the server."""
        self._send(HTTPStatus.OK, content, "text/html; charset=utf-8", policy)

    def send_json(self, status: HTTPStatus, content: Mapping[str, Any]) -> None:
        self._send(status, json.dumps(content).encode(), "application/json")

    def send_bytes(self, content: bytes) -> None:
        """Sends JSON that is made already."""
        self._send(HTTPStatus.OK, content, "application/json")

    def _send(
        self, status: HTTPStatus, content: bytes, kind: str, policy: str | None = None
    ) -> None:
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Security-Policy", policy or self.server.policy)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        """Logs nothing: a line per request would hide the server's address."""
