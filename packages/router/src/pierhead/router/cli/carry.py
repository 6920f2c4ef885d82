"""Carries a packed build to the control plane, follows it, and brings what came of it."""

import asyncio
import os
from collections.abc import Mapping

from pierhead.protocol.build import BuildView
from pierhead.protocol.cli.place import find_place
from pierhead.protocol.cli.speak import OK, Progress, give, give_json, size, tell
from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.client.pack import Packed
from pierhead.protocol.client.upload import upload
from pierhead.protocol.plan import ContextRef, Submit
from pierhead.protocol.redact import SHORTEST
from pierhead.router.cli.asked import Asked
from pierhead.router.cli.deliver import deliver
from pierhead.router.cli.follow import Story, follow
from pierhead.router.cli.interrupt import attend
from pierhead.router.cli.once import control_plane
from pierhead.router.cli.submitting import submitted
from pierhead.router.cli.unwritten import saying_what_is_there


def carry(asked: Asked, packed: Packed, url: str | None) -> int:
    """Have it built, and return the exit code."""
    if not asked.quiet:
        _tell_notes(asked.secrets)
    return asyncio.run(_build(asked, packed, url))


def _tell_notes(secrets: Mapping[str, bytes]) -> None:
    """Say which values cannot be kept out of a log."""
    for name, value in secrets.items():
        if not value:
            tell(f"note      the secret {name} is empty")
        elif len(value.strip()) < SHORTEST:
            tell(f"note      the secret {name} is too short to be hidden when a step prints it")


async def _build(asked: Asked, packed: Packed, url: str | None) -> int:
    async with (
        control_plane(find_place(url), stays=asked.detach) as place,
        place.client() as client,
    ):
        progress = Progress("upload", packed.size_bytes, quiet=asked.quiet)
        sent = await upload(client, asked.project, packed, progress.at)
        if sent.sent_bytes and not asked.quiet:
            changed = f"{sent.files} of {packed.files} files changed"
            tell(f"upload    {changed}, {sent_text(sent.sent_bytes, packed.size_bytes)}")
        view = await _submit(client, asked, sent.context)
        if asked.detach:
            await _tell_replaced(client, view)
            _give_id(asked, view)
            return OK
        code = await _follow(client, asked, view, may_detach=place.lasts)
    if code == OK and not place.lasts:
        _tell_where_it_went(asked)
    return code


def _tell_where_it_went(asked: Asked) -> None:
    """Say that the reference leads nowhere, now that the control plane has ended."""
    if not (asked.quiet or asked.as_json or asked.wish.outputs or asked.wish.load):
        tell(
            "note      nothing answers at this reference now: pierhead up keeps the registry, "
            "--load or -o takes the image along"
        )


def sent_text(sent_bytes: int, whole_bytes: int) -> str:
    """Return what was sent of a context; of a tiny one, the frames weigh more than it."""
    if sent_bytes >= whole_bytes:
        return size(sent_bytes)
    return f"{size(sent_bytes)} of {size(whole_bytes)}"


async def _submit(client: RouterClient, asked: Asked, context: ContextRef) -> BuildView:
    # A key makes the call replayable: a lost answer must not build twice.
    key = f"cli-{os.urandom(16).hex()}" if asked.key is None else asked.key
    request = Submit(
        project=asked.project,
        environment=asked.environment,
        plan=asked.plan,
        platforms=asked.platforms,
        context=context,
        key=key,
        tags=asked.tags,
        on=asked.on,
        supersedes=asked.supersedes,
        if_nobody=asked.if_nobody,
        secrets=dict(asked.secrets),
        secret_args=asked.allow_secret_args,
    )
    return await submitted(lambda: client.submit(request))


async def _follow(client: RouterClient, asked: Asked, view: BuildView, *, may_detach: bool) -> int:
    gives = not asked.wish.takes_stdout
    story = Story(asked.name, quiet=asked.quiet, raw=asked.raw, gives=gives)

    async def to_the_end() -> int:
        code = await follow(client, view.id, story, as_json=asked.as_json)
        if code == OK:
            await deliver(client, await client.build(view.id), asked.wish)
        return code

    async with saying_what_is_there(client, view.id, lasts=may_detach):
        return await attend(client, view.id, to_the_end(), may_detach=may_detach)


async def _tell_replaced(client: RouterClient, view: BuildView) -> None:
    """Say which older builds ended because this one came."""
    if view.supersedes is None:
        return
    page = await client.builds(project=view.project)
    for older in page.builds:
        if older.cancel_reason == f"replaced by {view.id}":
            tell(f"queued    replaces {older.id}")


def _give_id(asked: Asked, view: BuildView) -> None:
    if asked.as_json:
        give_json(view)
    else:
        give(view.id)
