"""A Dockerfile of 1 MiB comes from anybody: reading it takes as long as it is long."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pierhead.runner.domain.bases import image_of_the_machine, registries_named
from pierhead.runner.domain.dockerfile import Instruction, instructions, with_changed
from pierhead.runner.domain.linkflag import without_links
from pierhead.runner.domain.secretenv import with_secret_files

LENGTH = 1024 * 1024
LINES = [
    "FROM a",
    "COPY --link a b",
    "copy \\",
    "  --link=true \\",
    "# a comment",
    "RUN --mount=type=secret,id=n,env=N x",
    "RUN <<EOF",
    "EOF",
    "",
    "RUN --mount=type=secret,id=n,env=N \\\r",
    "A",
]


def of_length(line: str) -> str:
    return line * (LENGTH // len(line))


def plainly_changed(text: str, change: Callable[[Instruction, str], str]) -> str:
    """Give `change` all that follows, as whoever does not mind how long that is."""
    lines = text.splitlines(keepends=True)
    for one in reversed([*instructions(text)]):
        at = len("".join(lines[: one.line - 1]))
        text = text[:at] + change(one, text[at:])
    return text


@given(st.lists(st.sampled_from(LINES), max_size=12).map("\n".join))
def test_an_instruction_is_changed_where_it_is(text: str) -> None:
    def change(one: Instruction, rest: str) -> str:
        return f"<{one.words[0]}>{rest}"

    assert with_changed(text, change) == plainly_changed(text, change)
    assert (
        without_links(text).count("\n") == with_secret_files(text).count("\n") == text.count("\n")
    )


@pytest.mark.parametrize(
    ("line", "meant"),
    [("COPY --link a b\n", "COPY  a b\n"), ("A\n", "A\n"), ("ADD --link \\\n", "ADD  \\\n")],
)
def test_very_many_steps_are_read_once(line: str, meant: str) -> None:
    assert without_links(of_length(line)).startswith(meant)
    flags = of_length("--a \\\n")
    assert without_links(f"ADD --link {flags}") == f"ADD  {flags}"


def test_very_many_secrets_are_read_once() -> None:
    text = with_secret_files(of_length("RUN --mount=type=secret,id=n,env=N x\n"))

    assert text.count("if [ -f /run/secrets/n ]") == LENGTH // 37


@pytest.mark.parametrize("name", ["A{0}", "A"])
def test_a_variable_that_doubles_with_every_line_has_an_end(name: str) -> None:
    lines = (f"ARG {name.format(n + 1)}=${name.format(n)}${name.format(n)}\n" for n in range(99))
    text = f"ARG {name.format(0)}=ghcr.io/a\n{''.join(lines)}FROM ${name.format(99)}\n"

    assert registries_named(text, {}) == ("docker.io", "ghcr.io")
    assert image_of_the_machine(text, {}) is None


def test_very_many_variables_in_a_line_have_an_end() -> None:
    text = f"ARG A={'a' * 1024}\nFROM {of_length('$A')}\n"

    assert registries_named(text, {}) == ("docker.io",)
