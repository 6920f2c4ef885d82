"""The manual page, written from the commands themselves."""

from collections.abc import Iterator, Sequence
from typing import Final

from pierhead.protocol.cli.tree import Flag, Node
from pierhead.protocol.version import RELEASE

_RULES: Final = """\
Results go to standard output, the story of what happens to standard error.
.SH EXIT STATUS
.TP
0
done
.TP
1
refused, or the build failed
.TP
2
wrong usage
.TP
3
something that is needed does not answer
.TP
130
interrupted, or the build was cancelled
.SH ENVIRONMENT
.TP
PIERHEAD_URL, PIERHEAD_TOKEN
the control plane to speak to, and the token for it; they win over what
.B pierhead login
noted
.TP
PIERHEAD_CONFIG
where the command keeps what it was told, ~/.config/pierhead otherwise
.TP
PIERHEAD_DATA, PIERHEAD_RUNNER_STATE
where a control plane and a runner of this machine keep everything
.TP
PIERHEAD_CA
file with the control plane's certificate authority
.TP
PIERHEAD_INSECURE_HTTP
1: plain HTTP to other machines is fine
.TP
PIERHEAD_JOIN
the join code, for a container
.TP
HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE
as everywhere
.TP
NO_COLOR
no colour; there is none without a terminal either
"""


def manual(nodes: Sequence[Node]) -> str:
    """Return the page as roff (man(7)); `nodes` are the commands with their groups."""
    return "\n".join(_lines(nodes)) + "\n"


def _lines(nodes: Sequence[Node]) -> Iterator[str]:
    yield f'.TH PIERHEAD 1 "" "pierhead {RELEASE}" "User Commands"'
    yield ".SH NAME"
    yield "pierhead \\- build container images somewhere else"
    yield ".SH SYNOPSIS"
    yield ".B pierhead"
    yield "\\fICOMMAND\\fR [\\fIOPTION\\fR]... [\\fIARGUMENT\\fR]..."
    yield ".SH DESCRIPTION"
    yield _RULES.rstrip()
    yield ".SH COMMANDS"
    for node in nodes:
        yield from _command(node)


def _command(node: Node) -> Iterator[str]:
    if not node.children or node.flags:
        arguments = "".join(f" \\fI{_escaped(one)}\\fR" for one in node.arguments)
        yield f".SS pierhead {node.name}{arguments}"
        yield _escaped(node.help)
        for flag in node.flags:
            yield from _flag(flag)
    for child in node.children:
        yield from _command(child)


def _flag(flag: Flag) -> Iterator[str]:
    names = ", ".join(f"\\fB{_escaped(name)}\\fR" for name in flag.names)
    value = f" \\fI{_escaped(flag.value)}\\fR" if flag.value else ""
    default = f" (otherwise {flag.default})" if flag.default else ""
    yield ".TP"
    yield names + value
    yield _escaped(f"{flag.help}{default}") or "\\&"


def _escaped(text: str) -> str:
    plain = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join("\\&" + line if line[:1] in {".", "'"} else line for line in plain.split("\n"))
