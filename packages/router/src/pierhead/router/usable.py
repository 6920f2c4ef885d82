"""Can a control plane keep in its folders what it has to? Asked by whoever starts one."""

from pathlib import Path

from pierhead.server.disk import require_usable


def require_folders(data: Path, config: Path) -> None:
    """Make the folders if need be, and see that they can be used.

    Raises:
        Unavailable: one cannot, and why (`storage-full` when there is no room).
    """
    require_usable(data, elsewhere="PIERHEAD_DATA=DIR")
    require_usable(config, elsewhere="PIERHEAD_CONFIG=DIR")
