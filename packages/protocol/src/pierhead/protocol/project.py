"""Projects, their environments, and the tokens that open them."""

from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Struct

from pierhead.protocol.ids import EnvironmentName, ProjectName, ReplayKey, ShortText

# `read`: look and pull. `write`: also submit, cancel and push. `root`: everything, an owner's.
Ability: TypeAlias = Literal["read", "write", "root"]
TokenName: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=64,
        pattern=r"^[ -~]+\Z",
        description="printable ASCII characters",
        examples=["ci of web"],
    ),
]

TOKEN_SECONDS_MAX: Final = 10 * 366 * 86_400


class NewProject(Struct, frozen=True, kw_only=True):
    """Body of `POST /api/projects`. The same name again changes its settings."""

    name: ProjectName
    trusted: bool = True  # its builds may run where nothing isolates them


class ProjectView(Struct, frozen=True, kw_only=True):
    """One project."""

    name: ProjectName
    trusted: bool
    builds: int
    created_at: str  # RFC 3339


class ProjectPage(Struct, frozen=True, kw_only=True):
    """A page of projects, by name. `next`: give it back as `after`."""

    projects: tuple[ProjectView, ...]
    next: str | None = None


class Removal(Struct, frozen=True, kw_only=True):
    """What goes with a project, or went with it: answer to `DELETE /api/projects/{name}`."""

    project: ProjectName
    builds: int
    images: int
    tags: int
    environments: int
    tokens: int
    done: bool  # false: only asked for with `plan=true`


class NewEnvironment(Struct, frozen=True, kw_only=True):
    """Body of `POST /api/environments`. The same name again changes its settings."""

    project: ProjectName
    name: EnvironmentName
    preview: bool = False


class EnvironmentView(Struct, frozen=True, kw_only=True):
    """One environment of a project. `preview`: its builds get less trust than the others'."""

    project: ProjectName
    name: EnvironmentName
    preview: bool
    builds: int
    created_at: str


class EnvironmentPage(Struct, frozen=True, kw_only=True):
    """A page of environments, by name."""

    environments: tuple[EnvironmentView, ...]
    next: str | None = None


class NewToken(Struct, frozen=True, kw_only=True):
    """Body of `POST /api/tokens`. The same `key` again gets the same token for 15 minutes."""

    key: ReplayKey
    name: TokenName
    project: ProjectName | None = None  # none: a token of the owner
    ability: Ability = "write"
    environment: EnvironmentName | None = None  # none: all of the project's
    expires_in_seconds: Annotated[int, Meta(ge=60, le=TOKEN_SECONDS_MAX)] | None = None


class TokenView(Struct, frozen=True, kw_only=True):
    """A token as it is listed: never its secret, only how that ends."""

    id: ShortText
    name: ShortText
    project: ProjectName | None
    ability: Ability
    environment: EnvironmentName | None
    ends_with: ShortText  # the last four characters
    created_at: str
    created_by: ShortText
    expires_at: str | None = None
    used_at: str | None = None  # of pushes and pulls by way of another process, to the minute
    revoked_at: str | None = None


class TokenMade(Struct, frozen=True, kw_only=True):
    """A token that was made; its secret is shown here and never again."""

    token: ShortText
    view: TokenView


class TokenPage(Struct, frozen=True, kw_only=True):
    """A page of tokens, newest first."""

    tokens: tuple[TokenView, ...]
    next: str | None = None
