"""Logs: JSON lines on stderr, `event` is a stable dotted name, tokens never appear."""

import logging
import sys

import structlog

from pierhead.protocol.redact import hide_tokens


def configure() -> None:
    """Set up logging for a service. Libraries speak from warnings on."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            hide_tokens,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    # Docker tries TLS first on every loopback registry; that is its habit, not our trouble.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
