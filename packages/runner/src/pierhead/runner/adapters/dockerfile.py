"""The Dockerfile of a build, where its context has it."""

import os
from typing import Final

from pierhead.protocol.result import Failure
from pierhead.runner.domain.bases import image_of_the_machine
from pierhead.runner.domain.failure import of_the_machine
from pierhead.runner.domain.linkflag import without_links
from pierhead.runner.domain.secretenv import with_secret_files
from pierhead.runner.ports import BuildOrder

_DOCKERFILE_BYTES_MAX: Final = 1024 * 1024


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


def translated(order: BuildOrder) -> str | Failure | None:
    """Write a Dockerfile that buildah understands; none: the context's own is one."""
    text = text_of(order)
    try:
        said = with_secret_files(without_links(text))
    except ValueError as error:
        name = name_of(order)
        hint = "write the command without brackets, or read the secret from its file"
        return Failure(cause="dockerfile", message=f"{name}, {error}", hint=hint)
    if said == text:
        return None
    file = order.work / "Dockerfile"
    file.write_text(said)
    return str(file)
