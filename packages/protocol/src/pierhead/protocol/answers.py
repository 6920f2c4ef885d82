"""What each command prints with `--json`: one document, or one a line for streams.

The last line of a stream is the outcome. Whatever is refused is a problem document instead, and the
exit code says so.
"""

from typing import Any, Final

from msgspec import Struct

from pierhead.protocol.authority import AuthorityView
from pierhead.protocol.build import BuildPage, BuildView, Event, Why
from pierhead.protocol.meta import Meta, ServerCapabilities
from pierhead.protocol.project import (
    EnvironmentPage,
    ProjectPage,
    ProjectView,
    Removal,
    TokenMade,
    TokenPage,
)
from pierhead.protocol.registry import RegistryAdded, RegistryPage, RegistryView
from pierhead.protocol.runner import JoinCode, RunnerView


class StatusPage(Struct, frozen=True, kw_only=True):
    """Answer of `pierhead status`."""

    meta: Meta
    capabilities: ServerCapabilities
    builds: tuple[BuildView, ...]


class NodePage(Struct, frozen=True, kw_only=True):
    """Answer of `pierhead nodes`."""

    nodes: tuple[RunnerView, ...]


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that `pierhead doctor` looked at; `remedy` is empty when it is fine."""

    what: str
    text: str
    remedy: str = ""


# By command; several documents: a stream, one a line.
DOCUMENTS: Final[dict[str, Any]] = {
    "add": JoinCode,
    "ca": AuthorityView,
    "ca rotate": AuthorityView,
    "build --detach": BuildView,
    "builds cancel": BuildView,
    "builds cancel --project": BuildPage,
    "builds ls": BuildPage,
    "builds rerun --detach": BuildView,
    "builds run-here": BuildView,
    "builds show": BuildView,
    "builds why": Why,
    "doctor": tuple[Finding, ...],
    "nodes": NodePage,
    "owner-token add": TokenMade,
    "owner-token ls": TokenPage,
    "projects env ls": EnvironmentPage,
    "projects ls": ProjectPage,
    "projects remove": Removal,
    "projects show": ProjectView,
    "projects tokens add": TokenMade,
    "projects tokens ls": TokenPage,
    "registries add": RegistryAdded,
    "registries ls": RegistryPage,
    "registries remove": RegistryView,
    "status": StatusPage,
}
STREAMS: Final[dict[str, Any]] = {
    "build": Event,
    "builds rerun": Event,
    "builds watch": Event,
}
