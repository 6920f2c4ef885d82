"""A submit that has to wait says so, once, and goes on."""

import pytest

from pierhead.protocol.build import BuildView
from pierhead.protocol.errors import Unavailable
from pierhead.protocol.ids import BuildId
from pierhead.protocol.problem import problem
from pierhead.router.cli.submitting import submitted

VIEW = BuildView(
    id=BuildId("b_1"), project="web", state="queued", attempts=0, created_at="2026-01-01T00:00:00Z"
)


async def test_a_full_queue_is_told_once_and_asked_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    full = problem("rate-limited", "1000 builds wait already")
    answers: list[BuildView | Unavailable] = [Unavailable(full), Unavailable(full), VIEW]

    async def call() -> BuildView:
        answer = answers.pop(0)
        if isinstance(answer, Unavailable):
            raise answer
        return answer

    assert await submitted(call) is VIEW

    said = capsys.readouterr()
    assert said.err == "waiting   1000 builds wait already; trying again for 60 s\n"
    assert said.out == ""


async def test_what_heals_by_itself_is_not_worth_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    answers: list[BuildView | Unavailable] = [Unavailable(problem("draining", "it stops")), VIEW]

    async def call() -> BuildView:
        answer = answers.pop(0)
        if isinstance(answer, Unavailable):
            raise answer
        return answer

    assert await submitted(call) is VIEW
    assert capsys.readouterr().err == ""
