"""Keeps out of a process what a library loads for purposes that are not ours."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def passed_over(*names: str) -> Iterator[None]:
    """Make imports believe that modules are not installed, but for those that are loaded already.

    For what a library uses when it is there, and does without otherwise.
    """
    absent = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
