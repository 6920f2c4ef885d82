"""What a build had as its context is there for the next one of the project, and for nobody else."""

from dataclasses import replace
from pathlib import Path

import pytest

from pierhead.runner.adapters import home
from pierhead.runner.domain.failure import Disk
from pierhead.runner.ports import Built
from tests.integration.backend.conftest import Attempt, Bench


async def lent(bench: Bench, like: Attempt, **changes: object) -> Path:
    """Return where the context of the next build is, after the backend has lent one."""
    work = bench.folder / "work" / "next"
    work.mkdir(parents=True, exist_ok=True)
    order = replace(like.order, name="next", work=work, context=work / "context", **changes)  # type: ignore[arg-type]
    await bench.backend.lend(order)
    return order.context


async def test_the_next_build_of_the_project_begins_with_it(bench: Bench) -> None:
    attempt = bench.attempt("RUN true\n")
    assert isinstance(await attempt.run(), Built)
    assert (await attempt.stop()).clean
    assert not attempt.order.work.exists()

    assert not (await lent(bench, attempt, project="shop")).exists()
    assert not (await lent(bench, attempt, preview=True)).exists()
    context = await lent(bench, attempt)

    assert (context / "Dockerfile").read_text().endswith("RUN true\n")
    (bench.folder / "work" / "next" / "context").rename(bench.folder / "taken")
    assert not (await lent(bench, attempt)).exists()


async def test_a_build_that_ends_before_its_context_came_leaves_the_last_one(
    bench: Bench,
) -> None:
    attempt = bench.attempt("RUN true\n")
    await attempt.run()
    assert (await attempt.stop()).clean
    work = bench.folder / "work" / "ended"
    work.mkdir()
    ended = replace(attempt.order, name="ended", work=work, context=work / "context")

    assert (await bench.backend.stop(ended)).clean

    assert (await lent(bench, attempt)).is_dir()


async def test_a_step_cannot_write_into_what_the_next_build_begins_with(bench: Bench) -> None:
    steps = "RUN --mount=type=bind,target=/c,rw echo mine > /c/Dockerfile || true\n"
    attempt = bench.attempt(steps)
    before = (attempt.order.context / "Dockerfile").read_bytes()
    await attempt.run()
    assert (await attempt.stop()).clean

    assert (await lent(bench, attempt) / "Dockerfile").read_bytes() == before


async def test_a_disk_without_room_keeps_none(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home, "disk_of", lambda folder: Disk(str(folder), 1, 10**12))
    attempt = bench.attempt("RUN true\n")
    await attempt.run()
    assert (await attempt.stop()).clean

    assert not (await lent(bench, attempt)).exists()
