"""`pierhead registries`: logins at other registries, said once for the builds of all machines."""

import getpass
import sys
from typing import Annotated, Final

import typer

from pierhead.protocol.cli.given import AsJson, Url, formed, text_file
from pierhead.protocol.cli.speak import USAGE, columns, fail, give, give_json, tell
from pierhead.protocol.ids import ProjectName
from pierhead.protocol.registry import (
    SECRET_BYTES_MAX,
    ImageText,
    LoginKind,
    NewRegistry,
    RegistryAdded,
    RegistryHost,
    Username,
)
from pierhead.router.cli.dockerlogin import docker_login
from pierhead.router.cli.tokens import ask

app = typer.Typer(no_args_is_help=True, add_completion=False)
Host = Annotated[
    str,
    typer.Argument(help="Host of the registry: ghcr.io, HOST:PORT", callback=formed(RegistryHost)),
]
Project = Annotated[
    str | None,
    typer.Option(help="Only for builds of this project", callback=formed(ProjectName)),
]
_HOW: Final[dict[LoginKind, str]] = {
    "open": "it asks nobody for a login",
    "basic": "login works",
    "token": "login works",
}


@app.command()
def add(
    host: Host,
    username: Annotated[
        str | None, typer.Option("-u", "--username", help="As whom", callback=formed(Username))
    ] = None,
    token_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="File with the token", parser=text_file("--token-file")),
    ] = None,
    token_stdin: Annotated[
        bool, typer.Option("--token-stdin", help="Read the token from the input")
    ] = False,
    from_docker: Annotated[
        bool, typer.Option("--from-docker", help="Take the login of docker on this machine")
    ] = False,
    project: Project = None,
    image: Annotated[
        str | None,
        typer.Option(help="See whether this image may be pulled", callback=formed(ImageText)),
    ] = None,
    plain_http: Annotated[
        bool, typer.Option("--plain-http", help="Without TLS: the token goes in the clear")
    ] = False,
    ca_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The registry's own certificate authority, as PEM",
            parser=text_file("--ca-file"),
        ),
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """Try a login at a registry, and let all builds use it; asks for the token.

    Without --username the registry is only allowed, as one in a private network has to be.
    """
    if sum((token_file is not None, token_stdin, from_docker)) > 1:
        text = "--token-file, --token-stdin and --from-docker exclude each other"
        raise fail(text, "leave out the others", USAGE)
    secret = None
    if from_docker:
        username, secret = docker_login(host)
    elif username is not None:
        secret = _secret(host, username, token_file, from_input=token_stdin)
    elif token_file is not None or token_stdin:
        hint = f"pierhead registries add {host} --username NAME"
        raise fail("a token is of no use without --username", hint, USAGE)
    wanted = NewRegistry(
        host=host,
        username=username,
        secret=secret,
        project=project,
        plain_http=plain_http,
        ca=ca_file,
        image=image,
    )
    added = ask(url, lambda client: client.add_registry(wanted))
    if as_json:
        give_json(added)
        return
    for line in _seen(added):
        give(line)


@app.command("ls")
def list_registries(as_json: AsJson = False, url: Url = None) -> None:
    """List the registries that were added; never the tokens."""
    page = ask(url, lambda client: client.registries())
    if as_json:
        give_json(page)
        return
    rows = [("HOST", "AS", "FOR", "BY", "TRIED")]
    for one in page.registries:
        by = "plain HTTP" if one.plain_http else "own authority" if one.own_ca else "TLS"
        rows.append(
            (one.host, one.username or "-", one.project or "all", by, one.added_at[:16] + "Z")
        )
    for line in columns(rows):
        give(line)


@app.command()
def remove(host: Host, project: Project = None, as_json: AsJson = False, url: Url = None) -> None:
    """Forget a login; what builds had by it is not given out any more."""
    gone = ask(url, lambda client: client.remove_registry(host, project))
    if as_json:
        give_json(gone)
        return
    tell(f"builds{f' of {gone.project}' if gone.project else ''} do not use {gone.host} any more")


def _seen(added: RegistryAdded) -> list[str]:
    """Return what was seen, and nothing that was not."""
    view = added.registry
    width = max(len(view.host), len("used by")) + 2
    builds = f"builds of {view.project}" if view.project else "every build"
    how = _HOW[added.login] if view.username else "allowed, without a login"
    kept = ", never sent to a runner" if view.username else ""
    tried = f"can: pull {added.pulled}" if added.pulled else "what it may pull was not tried"
    return [
        f"{view.host:{width}}{how}   {tried}",
        f"{'used by':{width}}base images of {builds}{kept}",
        *([f"{'note':{width}}plain HTTP: it travels in the clear"] if view.plain_http else []),
    ]


def _secret(host: str, username: str, given: str | None, *, from_input: bool) -> str:
    """Return the token, from where it was said to be, or from whoever types it."""
    if given is not None:
        found = given
    elif from_input or not sys.stdin.isatty():
        found = sys.stdin.read(SECRET_BYTES_MAX + 1)
    else:
        found = getpass.getpass(f"Token of {username} for {host} (not shown): ")
    secret = found.strip("\r\n")
    if not 0 < len(secret) <= SECRET_BYTES_MAX:
        text = "there is no token in it" if not secret else "that is too long for a token"
        hint = f"a token of at most {SECRET_BYTES_MAX} bytes: --token-file FILE, or --token-stdin"
        raise fail(text, hint, USAGE)
    return secret
