import json
import logging
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import structlog
from prometheus_client import Counter

from temper.runtime.config import LoggingConfig, MetricsConfig, read_secret
from temper.runtime.errors import Unavailable
from temper.runtime.telemetry import (
    MetricsServer,
    get_logger,
    new_registry,
    redact_text,
    serve_metrics,
    setup_logging,
)


@pytest.fixture
def json_logs() -> Iterator[Callable[..., None]]:
    """Call it in the test: the captured standard error of the set-up phase is another file."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield lambda form="json": setup_logging(LoggingConfig(format=form, level="info"), service="example")
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    root.handlers[:], root.level = handlers, level


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


@pytest.fixture
def secret(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text("tok-4f9a-very-secret")
    return read_secret(path, field="x") or ""


def test_a_log_line_is_an_event_with_its_fields(
    json_logs: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    json_logs()
    get_logger().info("group.done", group="job-1-0", samples=8)
    (line,) = lines(capsys)
    assert line["event"] == "group.done"
    assert (line["group"], line["samples"], line["service"], line["level"]) == (
        "job-1-0",
        8,
        "example",
        "info",
    )
    assert line["timestamp"].endswith("Z")


def test_lines_below_the_level_are_not_written(
    json_logs: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    json_logs()
    get_logger().debug("noise")
    assert lines(capsys) == []


def test_vendors_loggers_go_the_same_way(
    json_logs: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    json_logs()
    logging.getLogger("vendor").warning("lost %s", "connection")
    logging.getLogger("vendor").info("chatter")
    (line,) = lines(capsys)
    assert (line["event"], line["logger"], line["service"]) == ("lost connection", "vendor", "example")


@pytest.mark.parametrize("form", ["json", "console"])
def test_no_secret_reaches_a_line(
    json_logs: Callable[..., None], form: str, secret: str, capsys: pytest.CaptureFixture[str]
) -> None:
    json_logs(form)
    log = get_logger()
    log.info(
        "a", token="abc", bus_token="abc", password="abc", api_key="abc", nested={"client_secret": "abc"}
    )
    log.info("b", url="nats://user:abc@host:4222", header="Bearer abc", items=["redis://:abc@h"])
    log.info(f"connected with {secret}", why=f"refused {secret}")
    logging.getLogger("vendor").warning("auth %s", secret)
    try:
        raise ValueError(secret)
    except ValueError:
        log.exception("c")
    written = capsys.readouterr().err
    assert secret not in written
    assert "abc" not in written
    assert "host:4222" in written


def test_token_counts_are_not_secrets(
    json_logs: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    json_logs()
    get_logger().info("step", tokens=512, tokens_per_s=10.0)
    (line,) = lines(capsys)
    assert line["tokens"] == 512


def test_text_without_secrets_is_untouched() -> None:
    assert (
        redact_text("nats://127.0.0.1:4222 bearer of news") == "nats://127.0.0.1:4222 Bearer [redacted] news"
    )
    assert redact_text("plain text") == "plain text"


def get(server: MetricsServer, path: str) -> tuple[int, str]:
    connection = HTTPConnection(server.host, server.port, timeout=5)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_metrics_health_and_readiness_are_served() -> None:
    registry = new_registry()
    Counter("temper_things", "Things", registry=registry).inc(3)
    ready = False
    server = MetricsServer(MetricsConfig(), registry, lambda: ready)
    try:
        assert "temper_things_total 3.0" in get(server, "/metrics")[1]
        assert get(server, "/healthz")[0] == 200
        assert get(server, "/readyz")[0] == 503
        ready = True
        assert get(server, "/readyz")[0] == 200
        assert get(server, "/other")[0] == 404
    finally:
        server.close()


def test_a_taken_metrics_port_is_said_with_a_way_out() -> None:
    server = MetricsServer(MetricsConfig(), new_registry(), lambda: True)
    try:
        with pytest.raises(Unavailable, match="cannot listen") as caught:
            MetricsServer(MetricsConfig(port=server.port), new_registry(), lambda: True)
        assert caught.value.field == "metrics.port"
    finally:
        server.close()


def test_no_port_means_no_metrics_server() -> None:
    assert serve_metrics(MetricsConfig(port=None), new_registry(), lambda: True) is None
