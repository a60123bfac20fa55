"""What a service says about itself: log events and metrics. Neither costs anything that a step would notice.

Logs are events with fields (structlog) on standard error; standard-library loggers of vendors go the same way, and
every line passes redaction. Metrics are Prometheus series in a registry per process, served over HTTP beside health.
Traces are in `temper.runtime.tracing`.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Callable, Mapping, MutableMapping
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder

from temper.runtime.config import LoggingConfig, MetricsConfig, known_secrets
from temper.runtime.errors import Unavailable

REDACTED = "[redacted]"
_SECRET_KEY = re.compile(
    r"token$|secret|passw|authorization|credential|api_?key|private_?key|seed$", re.IGNORECASE
)
_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")
_BEARER = re.compile(r"(?i)\bbearer\s+\S+")

Event = MutableMapping[str, Any]


# ---------------------------------------------------------------- logs
def setup_logging(config: LoggingConfig, **context: str) -> None:
    """Send structlog and standard-library records to standard error; `context` is on every line."""
    level = logging.getLevelNamesMapping()[config.level.upper()]
    console = config.format == "console" or (config.format == "auto" and sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    # Exceptions become text before redaction; plain text, because pretty ones print local variables, secrets included.
    renderer = (
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
        if console
        else structlog.processors.JSONRenderer()
    )
    ending: list[Any] = [structlog.processors.format_exc_info, redact, renderer]
    structlog.configure(
        processors=[*shared, *ending],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ending],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.WARNING))  # vendors chat at INFO
    structlog.contextvars.bind_contextvars(**context)


def get_logger(**context: Any) -> Any:
    """A logger: `log.info("group.done", group=group_id, samples=8)`. `context` is on each of its lines."""
    return structlog.get_logger(**context)


def redact(_: object, __: str, event: Event) -> Event:
    """structlog processor: hides values of secret-sounding keys, URL passwords, bearer tokens and known secrets."""
    for key, value in event.items():
        if _is_secret_key(key):
            event[key] = REDACTED
        elif isinstance(value, str):
            event[key] = redact_text(value)
        elif isinstance(value, (dict, list, tuple)):
            event[key] = _redact_nested(value)
    return event


def redact_text(text: str) -> str:
    """`text` without URL passwords, bearer tokens and every secret that `read_secret` has read."""
    if "://" in text:
        text = _USERINFO.sub(f"{REDACTED}@", text)
    if "earer" in text or "EARER" in text:
        text = _BEARER.sub(f"Bearer {REDACTED}", text)
    for secret in known_secrets():
        if secret in text:
            text = text.replace(secret, REDACTED)
    return text


@lru_cache(maxsize=4096)
def _is_secret_key(key: str) -> bool:
    return _SECRET_KEY.search(key) is not None


def _redact_nested(value: object) -> object:
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping):
        return {k: REDACTED if _is_secret_key(str(k)) else _redact_nested(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_redact_nested(each) for each in value]
    return value


# ---------------------------------------------------------------- metrics and health
def new_registry() -> CollectorRegistry:
    """A registry that already has the process, Python's garbage collector and the platform."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class MetricsServer:
    """`/metrics`, `/healthz` (alive) and `/readyz` (takes work) over HTTP, on a thread of its own."""

    def __init__(self, config: MetricsConfig, registry: CollectorRegistry, ready: Callable[[], bool]) -> None:
        """Binds at once. Raises Unavailable if the port is taken."""
        try:
            self._server = ThreadingHTTPServer((config.host, config.port or 0), _handler(registry, ready))
        except OSError as error:
            raise Unavailable(
                f"cannot listen on {config.host}:{config.port}: {error.strerror}",
                field="metrics.port",
                hint="choose another port, or 0 for a free one",
            ) from None
        self._server.daemon_threads = True
        self.host: str = config.host
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=2)


def serve_metrics(
    config: MetricsConfig, registry: CollectorRegistry, ready: Callable[[], bool]
) -> MetricsServer | None:
    """The server that `config` asks for; None when it asks for none."""
    return None if config.port is None else MetricsServer(config, registry, ready)


def _handler(registry: CollectorRegistry, ready: Callable[[], bool]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # seconds; a peer that stays silent does not keep a thread

        def do_GET(self) -> None:
            match self.path.partition("?")[0]:
                case "/metrics":
                    encode, content_type = choose_encoder(self.headers.get("Accept", ""))
                    self._answer(200, content_type, encode(registry))
                case "/healthz":
                    self._answer(200, "text/plain", b"alive\n")
                case "/readyz":
                    answer = (200, b"ready\n") if ready() else (503, b"not ready\n")
                    self._answer(answer[0], "text/plain", answer[1])
                case _:
                    self._answer(404, "text/plain", b"/metrics /healthz /readyz\n")

        def _answer(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Scrapes are not news."""

    return Handler
