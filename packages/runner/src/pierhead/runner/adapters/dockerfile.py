"""The Dockerfile of a build, where its context has it."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pierhead.protocol.client.pack import ignore_from
from pierhead.protocol.errors import Invalid
from pierhead.protocol.ignore import Ignore, ignore_files, only_for_builders, parse_ignore
from pierhead.protocol.result import Failure
from pierhead.runner.domain.bases import image_of_the_machine
from pierhead.runner.domain.failure import of_the_machine
from pierhead.runner.domain.linkflag import without_links
from pierhead.runner.domain.secretenv import with_secret_files
from pierhead.runner.domain.stagename import with_one_spelling
from pierhead.runner.ports import BuildOrder

_DOCKERFILE_BYTES_MAX: Final = 1024 * 1024
# What an ignore file could take for more than it is.
_UNUSUAL: Final = re.compile(r"[^\w./-]")


def problem_with(order: BuildOrder) -> Failure | None:
    """Say why the plan cannot be followed, before anything is started."""
    name = order.plan.dockerfile
    root = order.context.resolve()
    try:
        file = (root / name).resolve(strict=True)
    except (OSError, RuntimeError):  # of links that go round: RuntimeError before Python 3.13
        if os.path.islink(root / name):
            message = f"{name} is a link that leads to no file of the context"
            return Failure(cause="dockerfile", message=message)
        hint = "name it: pierhead build -f PATH"
        return Failure(cause="dockerfile", message=f"there is no {name} in the context", hint=hint)
    if not file.is_relative_to(root) or not file.is_file():
        return Failure(cause="dockerfile", message=f"{name} is not a file of the context")
    image = image_of_the_machine(text_of(order), order.plan.build_args)
    return of_the_machine(image) if image is not None else None


def name_of(order: BuildOrder) -> str:
    """Return what people call the Dockerfile."""
    return order.plan.dockerfile_named or order.plan.dockerfile


def text_of(order: BuildOrder) -> str:
    """Return its text; it was there when the build began."""
    try:
        with (order.context / order.plan.dockerfile).open("rb") as file:
            return file.read(_DOCKERFILE_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Translated:
    """Files that say to buildah what the context says."""

    dockerfile: str | None = None  # none: the context's own is understood
    ignore: str | None = None  # none: steps see all of the context


def translated(order: BuildOrder) -> Translated | Failure:
    """Write what buildah does not understand of the context's own."""
    found = _dockerfile(order)
    if isinstance(found, Failure):
        return found
    return Translated(dockerfile=found, ignore=_ignore_file(order))


def _dockerfile(order: BuildOrder) -> str | Failure | None:
    text = text_of(order)
    try:
        plain = with_one_spelling(without_links(text), order.plan.target)
        said = with_secret_files(plain)
    except ValueError as error:
        name = name_of(order)
        hint = "write the command without brackets, or read the secret from its file"
        return Failure(cause="dockerfile", message=f"{name}, {error}", hint=hint)
    if said == text:
        return None
    file = order.work / "Dockerfile"
    file.write_text(said)
    return str(file)


def _ignore_file(order: BuildOrder) -> str | None:
    """Write what comes along for us although the context's ignore file leaves it out."""
    ignore = _ignore(order)
    hidden = set(only_for_builders(ignore, order.plan.dockerfile))
    if not hidden:
        return None
    for name in sorted(hidden):
        hidden.update(_left_empty(order.context, ignore, hidden, name))
    file = order.work / "ignore"
    file.write_text("".join(_UNUSUAL.sub(r"\\\g<0>", name) + "\n" for name in sorted(hidden)))
    return str(file)


def _ignore(order: BuildOrder) -> Ignore:
    root = order.context.resolve()
    for name in ignore_files(order.plan.dockerfile):
        try:
            file = (root / name).resolve(strict=True)
            if file.is_relative_to(root) and file.is_file():
                with file.open("rb") as opened:
                    return ignore_from(name, opened.read(_DOCKERFILE_BYTES_MAX))
        except (OSError, RuntimeError):
            continue
        except Invalid:  # whoever packed the context read it otherwise, or not at all
            break
    return parse_ignore(())


def _left_empty(context: Path, ignore: Ignore, hidden: set[str], name: str) -> Iterator[str]:
    """Yield the folders that are left out as well, and only there for what is hidden."""
    while above := name.rpartition("/")[0]:
        there = os.listdir(context / above) if (context / above).is_dir() else []
        if not ignore.leaves_out(above) or any(f"{above}/{one}" not in hidden for one in there):
            return
        yield above
        hidden, name = {*hidden, above}, above
