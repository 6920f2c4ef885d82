"""Removes trees that somebody else has filled: as deep as they like, named as they like.

Not `shutil.rmtree`: it calls itself for each level, so a tree of a thousand levels ends it with a
RecursionError, also when it is told to ignore errors, and whoever calls it as well.
"""

import contextlib
import subprocess
from pathlib import Path


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it, as far as that can be done. Never raises.

    Whoever has to know looks again: a mount, say, stays.
    """
    nothing = subprocess.DEVNULL
    order = ["rm", "-rf", "--", str(folder.absolute())]
    with contextlib.suppress(OSError):  # no room for a process just now
        subprocess.run(order, stdin=nothing, stdout=nothing, stderr=nothing, check=False)
