"""What the tests of several parts need of the machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.small_disk import small_disk


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on a disk of 4 MiB."""
    with small_disk(tmp_path / "tiny", "size=4m") as folder:
        yield folder
