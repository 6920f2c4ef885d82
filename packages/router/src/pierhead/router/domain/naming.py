"""Names of projects, tags and references."""

import re
from typing import Final

from msgspec import Struct

from pierhead.protocol.digest import digest_of
from pierhead.protocol.ids import PROJECT_PATTERN, TAG_PATTERN
from pierhead.router.domain.errors import InvalidRequest

_PROJECT: Final = re.compile(PROJECT_PATTERN)
_TAG: Final = re.compile(TAG_PATTERN)
_MARK_LENGTH: Final = 16


class TagName(Struct, frozen=True):
    """A `-t` value, taken apart: `NAME[:TAG]`."""

    project: str
    tag: str


def parse_tag(text: str) -> TagName:
    """Take `NAME[:TAG]` apart; without a tag it is `latest`, as in docker.

    Raises:
        InvalidRequest: not a name or not a tag; a registry's host has no place in it.
    """
    name, _, tag = text.partition(":")
    tag = tag or "latest"
    if not _PROJECT.match(name) or len(name) > 128 or not _TAG.match(tag):
        hint = "write it like web or web:1.2, in lower case and without a registry"
        raise InvalidRequest(f"{text[:80]!r} is not NAME or NAME:TAG", hint=hint)
    return TagName(name, tag)


def project_from_folder(name: str) -> str:
    """Return a project name made from a folder's name.

    Raises:
        InvalidRequest: nothing usable is left of it.
    """
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:128].strip("-")
    if not plain:
        hint = "name it: --project NAME"
        raise InvalidRequest(f"no project name can be made from the folder {name!r}", hint=hint)
    return plain


def child_id(parent_id: str, number: int) -> str:
    """Return the id of a parent's build for its `number`th platform, from 1."""
    return f"{parent_id}-{number}"


def family_of(build_id: str) -> str:
    """Return what a parent and its children have in common: the parent's id."""
    return build_id.partition("-")[0]


def attempt_name(build_id: str, fence: int) -> str:
    """Return the name under which an attempt's pushes are pending."""
    return f"{build_id}.{fence}"


def upload_mark(repository: str, attempt: str) -> str:
    """Return what the id of an upload ends with: whose it is, and of which attempt, if of one.

    It tells nothing about either.
    """
    owner = _short_hash(repository)
    return f"{owner}_{_short_hash(attempt)}" if attempt else owner


def mark_of(upload_id: str) -> str:
    """Return what the id of an upload ends with; empty: it is nobody's in particular."""
    return (*upload_id.split("_", 2), "", "")[2]


def is_of_attempt(upload_id: str) -> bool:
    """Say whether an upload is of an attempt, and of no use after it."""
    return "_" in mark_of(upload_id)


def _short_hash(text: str) -> str:
    return digest_of(text.encode()).removeprefix("sha256:")[:_MARK_LENGTH]


def reference(host: str, project: str, digest: str) -> str:
    """Return where the image is, by content: `HOST/PROJECT@DIGEST`."""
    return f"{host}/{project}@{digest}"
