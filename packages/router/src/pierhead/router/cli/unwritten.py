"""What becomes of a build of which something cannot be written: told with what is there.

A full disk names no file when it refuses bytes, so whoever writes into one says which it was.
"""

import contextlib
import errno
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

from pierhead.protocol.build import FINAL_STATES, BuildView
from pierhead.protocol.cli.speak import fail, harmless
from pierhead.protocol.client.client import RouterClient

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextlib.contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Let errors of what is written there have its name, unless they have one."""
    try:
        yield
    except OSError as error:
        if error.filename is None and not isinstance(error, BrokenPipeError):
            error.filename = os.fspath(path)
        raise


@contextlib.asynccontextmanager
async def saying_what_is_there(
    client: RouterClient, build_id: str, *, lasts: bool
) -> AsyncIterator[None]:
    """Say what became of a build when what it gives cannot be written.

    `lasts`: its control plane is there for good.

    Raises:
        CommandFailed: something could not be written, and that was said.
    """
    try:
        yield
    except BrokenPipeError:
        raise  # whoever read it has enough
    except OSError as error:
        view = await client.build(build_id)
        raise fail(f"{_what(error)}; {_there(view, lasts=lasts)}", _next(error, view)) from error


def _what(error: OSError) -> str:
    reason = error.strerror or str(error)
    if error.filename is None:
        return f"the output takes no more: {reason}"
    return f"{harmless(os.fsdecode(error.filename))} cannot be written: {reason}"


def _there(view: BuildView, *, lasts: bool) -> str:
    """Return what there is of a build."""
    if view.reference is not None:
        return f"the image {'is there' if lasts else 'was built'} all the same: {view.reference}"
    if view.state in FINAL_STATES:
        return f"{view.id} {view.state}"
    return f"{view.id} goes on" if lasts else f"{view.id} is not built to its end"


def _next(error: OSError, view: BuildView) -> str:
    if error.errno == errno.EFBIG:
        return "ulimit -f unlimited, and build again: the steps come from the cache"
    if error.filename is not None:
        free = "free some space there, or " if error.errno in _FULL else ""
        is_ours = error.filename == tempfile.gettempdir()
        place = "another folder for what is there for now: TMPDIR=DIR" if is_ours else "another"
        return f"{free}name {place}, and build again: the steps come from the cache"
    if view.state in FINAL_STATES:
        return f"send the output elsewhere: pierhead builds show {view.id}"
    return f"send the output elsewhere: pierhead builds watch {view.id}"
