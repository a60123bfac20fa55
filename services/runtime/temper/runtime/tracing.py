"""One trace per group, through every service: the context travels in envelopes and gRPC metadata as `traceparent`.

OpenTelemetry's API, and free until an exporter is configured: with `OTEL_EXPORTER_OTLP_ENDPOINT` unset no span is opened
and no header is written. The exporter needs the extra `otel`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from temper.runtime.errors import Unavailable

_propagator = TraceContextTextMapPropagator()
_tracing = False  # until `setup_tracing` finds an exporter, spans are not even opened


def setup_tracing(service: str, environ: Mapping[str, str] | None = None) -> bool:
    """Export spans over OTLP when the standard variables ask for it; returns whether they do.

    Raises Unavailable, naming the extra, when they ask and the SDK is not installed.
    """
    global _tracing  # noqa: PLW0603 - one process, one tracer, as in OpenTelemetry itself
    variables = os.environ if environ is None else environ
    if not variables.get("OTEL_EXPORTER_OTLP_ENDPOINT") and not variables.get(
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
    ):
        return False
    if find_spec("opentelemetry.sdk") is None or find_spec("opentelemetry.exporter") is None:
        raise Unavailable(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, but the OpenTelemetry SDK is not installed",
            hint="pip install 'temper-rl[otel]', or unset the variable",
        )
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": f"temper-{service}"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    _tracing = True
    return True


def flush_tracing() -> None:
    """Send what is buffered; called last in a drain."""
    provider = trace.get_tracer_provider()
    if flush := getattr(provider, "force_flush", None):
        flush(2000)


@contextmanager
def span(
    name: str, *, traceparent: str | None = None, kind: str = "internal", **attributes: Any
) -> Iterator[None]:
    """A span around the body, child of `traceparent` if given (from an envelope). Free when tracing is off."""
    if not _tracing:
        yield
        return
    parent = _propagator.extract({"traceparent": traceparent}) if traceparent else None
    tracer = trace.get_tracer("temper")
    with tracer.start_as_current_span(
        name, context=parent, kind=SpanKind[kind.upper()], attributes=attributes
    ):
        yield


def current_traceparent() -> str | None:
    """W3C trace context of the span around the caller, for an envelope; None outside a span."""
    if not _tracing:
        return None
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier.get("traceparent")
