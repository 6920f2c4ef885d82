"""What the pages in docs/journeys show is what people see, word for word, numbers aside."""

from pathlib import Path

import pytest

from .journeys import PAGES, SCENES, aside, play


def test_every_page_is_played() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} - {"README"} == set(SCENES)


@pytest.mark.timeout(900)  # some of them build ten times
@pytest.mark.parametrize("page", SCENES)
async def test_a_page_shows_what_is_seen(page: str, tmp_path: Path) -> None:
    async def compare(typed: str, expected: str, seen: str) -> None:
        assert aside(seen) == aside(expected), f"$ {typed}\n{seen}"

    await play(page, tmp_path, compare)
