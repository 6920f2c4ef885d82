"""Registries of others: the owner's logins, by which base images of builds are had."""

from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Struct

from pierhead.protocol.ids import ProjectName, ShortText

# A name or an IPv4 address, with or without a port, in lower case.
HOST_PATTERN: Final = (
    r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*(:[0-9]{1,5})?\Z"
)
CERTIFICATE_BYTES_MAX: Final = 64 * 1024
SECRET_BYTES_MAX: Final = 16 * 1024  # of registries that give out tokens for a password
RegistryHost: TypeAlias = Annotated[
    str,
    Meta(
        max_length=261,
        pattern=HOST_PATTERN,
        description="the host of a registry, with its port if it has one",
        examples=["ghcr.io"],
    ),
]
Username: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=256,
        pattern=r"^[ -9;-~]+\Z",
        description="letters, digits and signs, but no colon",
        examples=["me"],
    ),
]
ImageText: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=512,
        pattern=r"^[a-z0-9][A-Za-z0-9._:@/-]*\Z",
        description="the name of an image there",
        examples=["me/app:1.2"],
    ),
]
# How a registry lets somebody in: `open` asked nobody who they are.
LoginKind: TypeAlias = Literal["open", "basic", "token"]


class NewRegistry(Struct, frozen=True, kw_only=True):
    """Body of `POST /api/registries`. The same host and project again replace the login.

    Without a username the registry is only allowed: one in a private network has to be. The secret
    is tried before it is kept, and never shown again.
    """

    host: RegistryHost
    username: Username | None = None
    secret: Annotated[str, Meta(min_length=1, max_length=SECRET_BYTES_MAX)] | None = None
    project: ProjectName | None = None  # none: for builds of every project
    plain_http: bool = False
    ca: Annotated[str, Meta(max_length=CERTIFICATE_BYTES_MAX)] | None = None  # PEM; none: system's
    image: ImageText | None = None  # to see whether it may be pulled: NAME, NAME:TAG or NAME@DIGEST

    def __repr__(self) -> str:
        # A repr ends up in logs and in reports of failed tests.
        return f"NewRegistry(host={self.host!r}, project={self.project!r})"


class RegistryView(Struct, frozen=True, kw_only=True):
    """A registry as it is listed: never its secret."""

    host: RegistryHost
    project: ProjectName | None
    username: ShortText | None
    plain_http: bool
    own_ca: bool
    added_at: str  # RFC 3339; the login was tried then


class RegistryAdded(Struct, frozen=True, kw_only=True):
    """What was seen when a login was tried, and only that."""

    registry: RegistryView
    login: LoginKind
    pulled: ShortText | None = None  # the image that was asked for, and may be pulled


class RegistryPage(Struct, frozen=True, kw_only=True):
    """All registries that the owner added, by host."""

    registries: tuple[RegistryView, ...]
