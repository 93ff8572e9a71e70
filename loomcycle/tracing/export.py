"""Sends spans to a collector by OTLP over HTTP. Imported only when tracing is on.

What the OpenTelemetry library logs is silenced, for it may repeat what a collector answers, and
that what it was sent: failures are told here, by kind and number, without headers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event as OtlpEvent
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from loomcycle import __version__
from loomcycle.tracing.spans import Span

log = logging.getLogger("loomcycle.tracing")

BATCH = 512
QUEUE = 8 * BATCH
"""Spans that may wait to be sent; journals are not read any further while there is no room."""

SEND_AFTER_S = 1.0
"""A batch that is not full is sent after this time."""

PATIENCE_S = 5.0
"""Of a batch with the collector, repetitions included; then it is lost."""

CLOSE_S = 0.5
"""So long what is left may take to be sent when the process stops."""


class OtlpSink:
    """``endpoint`` is the base address, without ``/v1/traces``.

    A thread of its own waits for the collector; the event loop does not.
    """

    def __init__(self, endpoint: str, headers: Mapping[str, str], service: str) -> None:
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
        self._resource = Resource({"service.name": service})
        self._scope = InstrumentationScope("loomcycle", __version__)
        self._loop = asyncio.get_running_loop()
        self._exporter = _Exporter(traces_url(endpoint), headers, self._done_with)
        self._waiting = 0
        self._room = asyncio.Event()
        self._batches = BatchSpanProcessor(
            self._exporter,
            max_queue_size=QUEUE,
            schedule_delay_millis=SEND_AFTER_S * 1000,
            max_export_batch_size=BATCH,
        )

    async def take(self, spans: Sequence[Span]) -> None:
        """Put spans into the next batches; waits while too many have not been sent."""
        for begin in range(0, len(spans), BATCH):
            chunk = spans[begin : begin + BATCH]
            while self._waiting > QUEUE - len(chunk):
                self._room.clear()
                await self._room.wait()
            self._waiting += len(chunk)
            for span in chunk:
                self._batches.on_end(self._readable(span))

    async def close(self) -> None:
        """Send what is left; what the collector does not take within a moment is lost."""
        closing = threading.Thread(target=self._batches.shutdown, daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, CLOSE_S)
        self._exporter.shutdown()

    def _done_with(self, spans: int) -> None:
        """Sent or lost; told by the thread of the batches."""
        with contextlib.suppress(RuntimeError):  # the loop may have ended before that thread
            self._loop.call_soon_threadsafe(self._make_room, spans)

    def _make_room(self, spans: int) -> None:
        self._waiting -= spans
        self._room.set()

    def _readable(self, span: Span) -> ReadableSpan:
        status = Status(StatusCode.UNSET)
        if span.error is not None:
            status = Status(StatusCode.ERROR, span.error)
        return ReadableSpan(
            name=span.name,
            context=_context(span.trace_id, span.span_id),
            parent=_context(span.trace_id, span.parent_id) if span.parent_id else None,
            resource=self._resource,
            instrumentation_scope=self._scope,
            attributes=dict(span.attributes),
            events=[OtlpEvent(e.name, dict(e.attributes), e.ts) for e in span.events],
            status=status,
            start_time=span.start,
            end_time=span.end,
        )


def traces_url(endpoint: str) -> str:
    """Where traces are posted; an address without a scheme is one with TLS."""
    if not endpoint.startswith(("http://", "https://")):
        endpoint = f"https://{endpoint}"
    return endpoint.rstrip("/") + "/v1/traces"


def _context(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id, False, TraceFlags(TraceFlags.SAMPLED))


class _Exporter(SpanExporter):
    """Tells what it is done with, sent or not; called by the thread of the batches."""

    def __init__(self, url: str, headers: Mapping[str, str], done: Callable[[int], None]) -> None:
        self._done_with = done
        self._host = urlsplit(url).hostname
        self._session = _Session()
        self._otlp = OTLPSpanExporter(
            endpoint=url, headers=dict(headers), timeout=PATIENCE_S, session=self._session
        )
        self._closing = threading.Lock()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._session.problem = ""
        result = SpanExportResult.FAILURE
        try:
            result = self._otlp.export(spans)
        finally:
            self._done_with(len(spans))
            problem = self._session.problem
            if problem or result is not SpanExportResult.SUCCESS:
                problem = problem or "no answer"
                log.warning("%d spans not sent to %s: %s", len(spans), self._host, problem)
        return result

    def shutdown(self) -> None:
        if self._closing.acquire(blocking=False):
            self._otlp.shutdown()  # type: ignore[no-untyped-call]


class _Session(requests.Session):
    """Remembers why the last request was in vain, without what was said; "" when it was not."""

    problem = ""

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        try:
            response = super().send(request, **options)
        except Exception as cause:
            self.problem = type(cause).__name__
            raise
        taken = 200 <= response.status_code < 300
        self.problem = "" if taken else f"HTTP {response.status_code}"
        return response
