"""Spans of OpenTelemetry around long work, for the provider that a program has set up.

Nothing is imported for them: a program that has a provider has loaded its API. Without it a span
costs a look into `sys.modules`.
"""

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from featstore.base.redaction import redact_text

Value = str | bool | int | float
Note = Callable[..., None]


@contextmanager
def span(name: str, *, is_current: bool = True, **attributes: Value) -> Iterator[Note]:
    """A span for the block, a child of the current one. Errors of the block are recorded in it.

    Args:
        name: The name.
        is_current: Whether spans that begin in the block are its children. False in a generator,
            whose caller would otherwise see the span as its own.
        attributes: What is known at its begin. They get the prefix `featstore.`, as the name does.

    Yields:
        A function that adds attributes, as keywords.
    """
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        yield _nothing
        return
    found = trace.get_tracer("featstore").start_span(f"featstore.{name}")

    def note(**more: Value) -> None:
        found.set_attributes({f"featstore.{key}": value for key, value in more.items()})

    note(**attributes)
    use = trace.use_span(found, record_exception=False, set_status_on_exception=False)
    try:
        with use if is_current else nullcontext():
            yield note
    except Exception as error:
        trace_text = "".join(traceback.format_exception(error))
        shown = {"message": str(error), "stacktrace": trace_text}  # Libraries name signed URLs.
        found.record_exception(
            error, {f"exception.{name}": redact_text(text) for name, text in shown.items()}
        )
        found.set_status(trace.Status(trace.StatusCode.ERROR, type(error).__name__))
        raise
    finally:
        found.end()


def _nothing(**attributes: Value) -> None:
    """Adds nothing."""
