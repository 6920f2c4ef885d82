"""Logs: JSON lines, `event` is a stable dotted name, tokens never appear.

They go through the standard library's logger `pierhead`. A service of ours sends it to stderr; a
program that has a service of ours inside does with it what it does with its other libraries.
"""

import logging
import sys
from typing import Any

import structlog

from pierhead.protocol.redact import hide_tokens

_LOGGER = logging.getLogger("pierhead")


def get_logger() -> Any:
    """Return the logger of all services."""
    return structlog.wrap_logger(
        _LOGGER,
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            hide_tokens,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def configure() -> None:
    """Set up logging for a process that is ours. Libraries speak from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    _LOGGER.propagate = False
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    # Docker tries TLS first on every loopback registry; that is its habit, not our trouble.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
