"""Logs: JSON lines on stderr, `event` is a stable dotted name, tokens never appear."""

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any, Final

import structlog

_TOKEN: Final = re.compile(r"\b(ph[oplbr]_[\w.~/-]{8})[\w.~/-]+|\b(ph1_\S{8})\S+")


def redact(_logger: object, _method: str, event: MutableMapping[str, Any]) -> Any:
    """Cut every token in the values of a record after its first characters."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = _TOKEN.sub(lambda found: f"{found[1] or found[2]}***", value)
    return event


def configure() -> None:
    """Set up logging for a service. Libraries speak from warnings on."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            redact,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    # Docker tries TLS first on every loopback registry; that is its habit, not our trouble.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
