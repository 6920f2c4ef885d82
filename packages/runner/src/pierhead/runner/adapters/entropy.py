"""Chance, from the operating system."""

import random
import secrets


def new_id() -> str:
    """Return 128 random bits as text: names a process or a request."""
    return secrets.token_hex(16)


def jitter(seconds: float) -> float:
    """Return a wait from the whole window, so that many runners do not come back at once."""
    return random.uniform(0, seconds)  # noqa: S311 - not a secret
