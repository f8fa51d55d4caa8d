"""A page's server that answers in a thread, for as long as a test needs it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from kindling.system.page_server import PageServer

AnyServer = TypeVar("AnyServer", bound=PageServer)


@contextmanager
def answering(server: AnyServer) -> Iterator[AnyServer]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    with server:
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
