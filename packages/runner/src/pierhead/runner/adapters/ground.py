"""The runner's folder on the disk, looked at again and again while the runner works.

People remove folders, disks fill, and file systems turn read-only under a process that runs. What
lies below the folder is made anew. The folder itself is the runner's only as long as the lock in it
is the one that this process holds: another runner may have joined in its place meanwhile.
"""

import os
from pathlib import Path

from pierhead.protocol.errors import Unavailable
from pierhead.protocol.problem import problem
from pierhead.runner.adapters.workspace import disk_of


class LockedGround:
    """A folder with a lock of which this process holds the descriptor."""

    def __init__(self, state: Path, work: Path, lock: Path, holder: int) -> None:
        self._state = state
        self._work = work
        self._lock = lock
        self._holder = holder

    def lack(self) -> str | None:
        """Say why nothing can be built there now; none: builds may come.

        Raises:
            Unavailable: it is not this runner's any more.
        """
        try:
            if not self._is_ours():
                raise _gone(self._state)
            self._work.mkdir(exist_ok=True)
            if not os.access(self._work, os.W_OK | os.X_OK):
                return f"its folder cannot be written to: {self._work}"
            return disk_of(self._work).lack
        except OSError as error:
            return f"its folder cannot be used: {error}"

    def _is_ours(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._lock), os.fstat(self._holder))
        except FileNotFoundError:
            return False


def _gone(state: Path) -> Unavailable:
    detail = f"the folder of this runner was removed while it worked: {state}"
    hint = "on the control plane: pierhead add NAME --builds, then here: pierhead join CODE"
    return Unavailable(problem("dependency-unavailable", detail, hint=hint))
