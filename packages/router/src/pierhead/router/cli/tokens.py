"""`pierhead owner-token`, and what it shares with the tokens of projects."""

import asyncio
import base64
import json
import os
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer
from msgspec import Meta

from pierhead.protocol.cli.given import SHOWN_MAX, AsJson, Limit, Url, formed
from pierhead.protocol.cli.place import Place, config_folder, find_place, note_place
from pierhead.protocol.cli.speak import USAGE, fail, give, give_json, tell
from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.client.retry import patiently
from pierhead.protocol.project import (
    TOKEN_SECONDS_MAX,
    Ability,
    NewToken,
    TokenMade,
    TokenName,
    TokenView,
)

T = TypeVar("T")
app = typer.Typer(no_args_is_help=True, add_completion=False)
_LIFETIME: Final = re.compile(r"([1-9][0-9]{0,5})([mhdy])\Z")
_SECONDS: Final = {"m": 60, "h": 3600, "d": 86_400, "y": 366 * 86_400}


def seconds_of(option: str, text: str, example: str) -> int:
    """Return a length of time in seconds, as it was given to an option.

    Raises:
        CommandFailed: it is not like `90d`.
    """
    found = _LIFETIME.match(text)
    if found is None:
        text = f"{option} has to be a number and one of m, h, d, y, and not {text[:SHOWN_MAX]!r}"
        raise fail(text, f"{option} {example}", USAGE)
    return int(found[1]) * _SECONDS[found[2]]


def lifetime(text: str) -> int:
    """Return the lifetime of a token in seconds.

    Raises:
        CommandFailed: it is not like `90d`, or too long.
    """
    seconds = seconds_of("--expires", text, "90d")
    if seconds > TOKEN_SECONDS_MAX:
        raise fail("--expires has to be at most 10 years", "--expires 10y", USAGE)
    return seconds


TokenId = Annotated[str, Meta(min_length=1, max_length=64, examples=["t_7f3k"])]
Expires = Annotated[
    int | None,
    typer.Option(metavar="LIFETIME", help="It ends after: 90d, 12h, 30m", parser=lifetime),
]
After = Annotated[str | None, typer.Option(help="Go on after this one", callback=formed(TokenId))]
RETRY_SECONDS: Final = 10.0


@app.command("ls")
def list_owner_tokens(
    limit: Limit = 50,
    after: After = None,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """List the owner's tokens, newest first; never what they are."""
    list_tokens(url, None, limit=limit, after=after, as_json=as_json)


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="What it is for", callback=formed(TokenName))],
    expires: Expires = None,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """Make another token that may do everything; it is shown once."""
    made = make_token(url, name=name, project=None, ability="root", expires=expires)
    if as_json:
        give_json(made)
        return
    give(made.token)
    tell(f"{made.view.id} may do everything; it is not shown again")


@app.command()
def revoke(
    token_id: Annotated[
        str, typer.Argument(help="Id, as `owner-token ls` shows it", callback=formed(TokenId))
    ],
    url: Url = None,
) -> None:
    """End a token, at once."""
    view = ask(url, lambda client: client.revoke_token(token_id))
    tell(f"{view.id} ({view.name}) opens nothing any more")


@app.command()
def rotate(expires: Expires = None, url: Url = None) -> None:
    """Put a new token in the place of the one that this command uses, and end that one.

    The new one is written down before the old one ends, so there is always one that opens.
    """
    place = find_place(url)
    if place.token is None or "PIERHEAD_TOKEN" in os.environ:
        hint = "unset PIERHEAD_TOKEN, or: pierhead owner-token add NAME"
        raise fail("there is no file whose token could be replaced", hint, USAGE)
    old = ask(url, lambda client: client.own_token())
    made = make_token(url, name=old.name, project=None, ability="root", expires=expires)
    _write_down(place, place.token, made.token)
    asyncio.run(_end(replace(place, token=made.token), old.id))
    tell(f"{made.view.id} opens everything now, and {old.id} nothing any more")


def make_token(
    url: str | None,
    *,
    name: str,
    project: str | None,
    ability: Ability,
    environment: str | None = None,
    expires: int | None = None,
) -> TokenMade:
    """Make a token; when the answer is lost, the same one is asked for again."""
    wanted = NewToken(
        key=f"cli-{os.urandom(16).hex()}",
        name=name,
        project=project,
        ability=ability,
        environment=environment,
        expires_in_seconds=expires,
    )

    async def make(client: RouterClient) -> TokenMade:
        return await patiently(lambda: client.add_token(wanted), RETRY_SECONDS)

    return ask(url, make)


def list_tokens(
    url: str | None, project: str | None, *, limit: int, after: str | None, as_json: bool
) -> None:
    """List tokens, of a project or of the owner."""
    page = ask(url, lambda client: client.tokens(project, limit=limit, after=after))
    if as_json:
        give_json(page)
        return
    give(f"{'ID':12} {'NAME':20} {'MAY':6} {'ENDS WITH':9} {'LAST USED':17} STATE")
    for view in page.tokens:
        used = view.used_at[:16] + "Z" if view.used_at else "never"
        give(
            f"{view.id:12} {view.name:20} {view.ability:6} {view.ends_with:9} {used:17} "
            f"{_state(view)}"
        )
    if page.next:
        tell(f"more: --after {page.next}")


def ask(url: str | None, call: Callable[[RouterClient], Awaitable[T]]) -> T:
    """Ask the control plane something, and return what it says."""

    async def run() -> T:
        async with find_place(url).client() as client:
            return await call(client)

    return asyncio.run(run())


def _state(view: TokenView) -> str:
    if view.revoked_at:
        return f"revoked {view.revoked_at[:10]}"
    where = f", {view.environment} only" if view.environment else ""
    return (f"until {view.expires_at[:16]}Z" if view.expires_at else "for ever") + where


async def _end(place: Place, token_id: str) -> None:
    async with place.client() as client:
        await client.revoke_token(token_id)


def _write_down(place: Place, old: str, new: str) -> None:
    """Replace the old token wherever this user's folder has it, each file at once or not at all."""
    folder = config_folder()
    if _text(folder / "token").strip() == old:
        _replace(folder / "token", new + "\n")
    if old in _text(folder / "context.json"):
        note_place(place.url, new, place.ca)
    login = folder / "docker/config.json"
    if replaced := _with_password(_text(login), old, new):
        _replace(login, replaced)


def _with_password(text: str, old: str, new: str) -> str | None:
    """Return a login file of docker with another password; none: the old one is not in it."""
    try:
        found = json.loads(text)
        logins = [one for one in found["auths"].values() if _password(one) == old]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    for one in logins:
        user = base64.b64decode(one["auth"]).decode().partition(":")[0]
        one["auth"] = base64.b64encode(f"{user}:{new}".encode()).decode()
    return json.dumps(found, indent=2) if logins else None


def _password(login: dict[str, str]) -> str:
    return base64.b64decode(login.get("auth", "")).decode().partition(":")[2]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name(path.name + ".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
