"""`pierhead ca`: by whom the control plane is believed, and how that is changed for another one."""

import sys
from collections.abc import Iterable
from typing import Annotated

import typer

from pierhead.protocol.authority import (
    AFTER_SECONDS,
    AFTER_SECONDS_MAX,
    AFTER_SECONDS_MIN,
    AuthorityView,
    Replace,
    Replaced,
    RootView,
    Rotate,
)
from pierhead.protocol.cli.given import AsJson, Url, readable
from pierhead.protocol.cli.speak import REFUSED, USAGE, duration, fail, give, give_json, tell
from pierhead.protocol.client.trust import read_pin
from pierhead.protocol.errors import Invalid
from pierhead.router.cli.tokens import ask, seconds_of

app = typer.Typer(invoke_without_command=True, add_completion=False)


def _after(text: str) -> int:
    seconds = seconds_of("--after", text, "7d")
    if not AFTER_SECONDS_MIN <= seconds <= AFTER_SECONDS_MAX:
        raise fail("--after has to be from 15 minutes to 90 days", "--after 7d", USAGE)
    return seconds


@app.callback()
def show(context: typer.Context, as_json: AsJson = False, url: Url = None) -> None:
    """Show the certificate authority that others know the control plane by, and who knows it."""
    if context.invoked_subcommand is not None:
        return
    _show(ask(url, lambda client: client.authority()), as_json=as_json)


@app.command()
def rotate(
    after: Annotated[
        int | None,
        typer.Option(
            metavar="TIME", help="How long each of the two phases lasts, at most: 7d", parser=_after
        ),
    ] = None,
    finish: Annotated[
        bool, typer.Option("--finish", help="Go on now, whoever does not know the new one yet")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Keep the old one: before the new one signs")
    ] = False,
    now: Annotated[
        bool, typer.Option("--now", help="Nobody is believed any more: all machines join again")
    ] = False,
    fingerprint: Annotated[
        str | None,
        typer.Option(
            metavar="PIN",
            help="With --now: the authority that is to end, as `pierhead ca` shows it",
            callback=readable(read_pin, "64 digits of hexadecimal", "PIN", Invalid),
        ),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say what would happen; do nothing")] = False,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """Change the authority for another one, while everything goes on; or, with --now, at once."""
    if sum((finish, cancel, now, after is not None)) > 1:
        text = "--after, --finish, --cancel and --now exclude each other"
        raise fail(text, "leave out the others", USAGE)
    if fingerprint is not None and not now:
        text = "--fingerprint confirms what --now does"
        raise fail(text, "pierhead ca rotate --now --fingerprint PIN", USAGE)
    found = ask(url, lambda client: client.authority())
    if now:
        _replace(found, fingerprint, url, plan=plan, as_json=as_json)
        return
    if plan:
        for line in _would(found, after or AFTER_SECONDS, finish=finish, cancel=cancel):
            tell(line)
        return
    if finish:
        found = ask(url, lambda client: client.advance_rotation())
    elif cancel:
        found = ask(url, lambda client: client.cancel_rotation())
        tell("join codes that were made since it was announced work no more")
    else:
        wanted = Rotate(after_seconds=after or AFTER_SECONDS)
        found = ask(url, lambda client: client.rotate(wanted))
    _show(found, as_json=as_json)


def _show(found: AuthorityView, *, as_json: bool) -> None:
    if as_json:
        give_json(found)
        return
    for line in lines_of(found):
        give(line)
    tell(_next(found))


def lines_of(found: AuthorityView) -> Iterable[str]:
    """Yield what is to be known of an authority."""
    yield f"pin        {found.root.fingerprint}   ({_signs(found)})"
    yield f"valid      {_days(found.root)}"
    if found.coming is not None:
        yield f"coming     {found.coming.fingerprint}   (signs from {_at(found)} on, at the latest)"
    if found.leaving is not None:
        yield f"leaving    {found.leaving.fingerprint}   (believed until {_at(found)})"
    which = "   (the coming one)" if found.coming else ""
    yield f"known to   {', '.join(found.knowing) or 'no runner'}{which}"
    if found.unknowing:
        named = [name if name in found.awaited else f"{name} (stopped)" for name in found.unknowing]
        yield f"not yet    {', '.join(named)}"


def _signs(found: AuthorityView) -> str:
    return "signs, in every join code" if found.coming is None else "signs now"


def _days(root: RootView) -> str:
    return f"{root.since[:10]} to {root.until[:10]}"


def _at(found: AuthorityView) -> str:
    return f"{(found.next_at or '')[:16].replace('T', ' ')} UTC"


def _next(found: AuthorityView) -> str:
    match found.turn:
        case "announced":
            soon = "as soon as all that work know it, in 15 minutes at the earliest"
            return f"next: the coming one signs {soon}; pierhead ca rotate --finish: now"
        case "switched":
            return "next: the leaving one is believed no more; pierhead ca rotate --finish: now"
        case "steady":
            if not found.unknowing:
                return "next: pierhead ca rotate      change it for another one"
            name = found.unknowing[0]
            again = f"pierhead nodes remove {name} && pierhead add {name} --builds"
            return f"next: one that stays away has to join again: {again}"


def _would(found: AuthorityView, after: int, *, finish: bool, cancel: bool) -> Iterable[str]:
    """Yield what a command does, before it is done; what cannot be done is refused afterwards."""
    if cancel:
        yield "the coming authority is forgotten; codes that were made since it was announced end"
    elif finish and found.turn == "switched":
        yield "whoever knows the leaving authority only has to join, or log in, again"
    elif finish:
        yield f"the coming authority signs; not known to: {', '.join(found.unknowing) or 'nobody'}"
    else:
        long = duration(after, whole=True)
        yield f"another authority is made, and learned by all that work, for {long} at most"
        yield f"then it signs, and the old one is believed for {long} more"


def _replace(
    found: AuthorityView, said: str | None, url: str | None, *, plan: bool, as_json: bool
) -> None:
    runners = [*found.knowing, *found.unknowing]
    tell(f"the authority {found.root.fingerprint} ends now, and with it:")
    tell(f"  runners that have to join again, by new codes: {', '.join(runners) or 'none'}")
    tell("  all join codes, and the logins of commands on other machines")
    if plan:
        return
    confirmed = read_pin(said) if said is not None else _typed()
    done = ask(url, lambda client: client.replace_authority(Replace(fingerprint=confirmed)))
    if as_json:
        give_json(ask(url, lambda client: client.authority()))
        return
    for line in _done(done):
        tell(line)
    give(done.new_fingerprint)


def _typed() -> str:
    """Return the fingerprint that somebody confirms.

    Raises:
        CommandFailed: there is nobody at a terminal.
    """
    if not sys.stdin.isatty():
        text = "nothing was changed: it has to be confirmed which authority is to end"
        raise fail(text, "pierhead ca rotate --now --fingerprint PIN   (pierhead ca)", REFUSED)
    text = typer.prompt("Type its fingerprint, all 64 digits, to go on", err=True)
    return read_pin(text)


def _done(done: Replaced) -> Iterable[str]:
    yield f"{done.codes} join codes ended; nobody is believed any more by {done.old_fingerprint}"
    yield from (f"next: pierhead add {name} --builds" for name in done.runners)
    yield "the new fingerprint, for pierhead login URL --pin:"
