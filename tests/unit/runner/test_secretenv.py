"""What a Dockerfile asks for as a variable is read from a file, and all else stays as it was."""

import pytest

from pierhead.runner.domain.secretenv import with_secret_files

READ = 'if [ -f /run/secrets/npm ]; then NPM_TOKEN="$(cat /run/secrets/npm)"; export NPM_TOKEN; fi;'


def test_a_step_reads_its_variable_before_it_begins() -> None:
    text = "FROM a\nRUN --mount=type=secret,id=npm,env=NPM_TOKEN npm ci\nCMD x\n"

    assert with_secret_files(text) == (
        f"FROM a\nRUN --mount=type=secret,id=npm,mode=0444 {READ} npm ci\nCMD x\n"
    )


def test_flags_over_several_lines_and_other_mounts_stay_where_they_are() -> None:
    text = (
        "FROM a\n"
        "run --mount=type=cache,target=/c \\\n"
        "    # a comment\n"
        "    --mount=id=npm,type=secret,required=true,env=NPM_TOKEN,mode=0400 \\\n"
        "    npm ci \\\n"
        "    && true\n"
        "RUN echo type=secret,env=X\n"
    )

    assert with_secret_files(text) == (
        "FROM a\n"
        "run --mount=type=cache,target=/c \\\n"
        "    # a comment\n"
        "    --mount=id=npm,type=secret,required=true,mode=0400 \\\n"
        f"    {READ} npm ci \\\n"
        "    && true\n"
        "RUN echo type=secret,env=X\n"
    )


def test_two_secrets_are_two_variables_and_a_target_is_where_it_is_read_from() -> None:
    mounts = "--mount=type=secret,id=a,env=A,target=/a --mount=type=secret,id=b,env=B"

    assert with_secret_files(f"RUN {mounts} x\n") == (
        "RUN --mount=type=secret,id=a,target=/a,mode=0444 --mount=type=secret,id=b,mode=0444 "
        'if [ -f /a ]; then A="$(cat /a)"; export A; fi; '
        'if [ -f /run/secrets/b ]; then B="$(cat /run/secrets/b)"; export B; fi; x\n'
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "FROM a\nRUN --mount=type=secret,id=npm cat /run/secrets/npm\n",
        "FROM a\nENV X=type=secret,env=Y\n",
        "FROM a\nRUN --mount=type=secret,id=npm,env=not-a-name x\n",
        "FROM a\nRUN --mount=type=secret,env=NO_ID x\n",
        "# RUN --mount=type=secret,id=npm,env=X x\nFROM a\n",
        "FROM a\nRUN <<END\nRUN --mount=type=secret,id=npm,env=X x\nEND\n",
        "FROM a\nLABEL a=\\\nRUN\\ --mount=type=secret,id=npm,env=X\n",
    ],
)
def test_a_dockerfile_without_such_steps_is_not_touched(text: str) -> None:
    assert with_secret_files(text) == text


def test_a_step_without_a_shell_is_refused_with_its_line() -> None:
    with pytest.raises(ValueError, match="line 2: a step in brackets"):
        with_secret_files('FROM a\nRUN --mount=type=secret,id=npm,env=X ["npm", "ci"]\n')
