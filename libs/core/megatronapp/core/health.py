"""/healthz, /readyz and /metrics of a service, answered by a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from megatronapp.core.errors import PortInUseError


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    timeout = 10

    def log_message(self, *args: Any) -> None:
        """Probes and scrapes are no news."""


class HealthServer:
    """Serves while the process lives; ready while `ready()` says so. Port 0 takes a free one."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry, ready: Callable[[], bool]) -> None:
        self._metrics = make_wsgi_app(registry)
        self._ready = ready
        try:
            self._server = make_server(host, port, self._answer, _Server, _QuietHandler)
        except OSError as error:
            raise PortInUseError(host, port, "--http-port", str(error.strerror)) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            metrics: Iterable[bytes] = self._metrics(environ, start_response)
            return metrics
        if path == "/healthz":
            status, text = "200 OK", "ok"
        elif path == "/readyz":
            status, text = ("200 OK", "ready") if self._ready() else ("503 Service Unavailable", "not ready")
        else:
            status, text = "404 Not Found", "try /healthz, /readyz or /metrics"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{text}\n".encode()]
