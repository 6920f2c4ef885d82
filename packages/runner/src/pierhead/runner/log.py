"""Logs of the runner: JSON lines on stderr; `event` is a stable dotted name."""

import sys

import structlog

from pierhead.protocol.redact import hide_tokens


def configure() -> None:
    """Set up logging for the service."""
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
