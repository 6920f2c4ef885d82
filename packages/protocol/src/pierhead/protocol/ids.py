"""Names of things on the wire. All are opaque to whoever did not make them.

What has a pattern also has a description and an example: people are shown these, never the pattern.
"""

from typing import Annotated, NewType, TypeAlias

from msgspec import Meta

BuildId = NewType("BuildId", str)
RunnerId = NewType("RunnerId", str)
SessionId = NewType("SessionId", str)
UploadId = NewType("UploadId", str)

# A project is also a repository name, so it obeys the distribution spec's grammar for one
# (https://github.com/opencontainers/distribution-spec, "Pulling manifests"), kept short.
# `\Z` and not `$`: `$` lets a trailing newline through.
PROJECT_PATTERN = r"^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*\Z"
TAG_PATTERN = r"^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}\Z"
RUNNER_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z"
# It becomes the name of a file, /run/secrets/ID, and a word of a command line.
SECRET_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z"  # noqa: S105 - of names
# SHA-256 of the certificate of an authority.
PIN_PATTERN = r"^[0-9a-f]{64}\Z"
ENVIRONMENT_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z"

ProjectName: TypeAlias = Annotated[
    str,
    Meta(
        max_length=128,
        pattern=PROJECT_PATTERN,
        description="lowercase letters and digits, with . _ - or / between them",
        examples=["acme/web"],
    ),
]
TagName: TypeAlias = Annotated[
    str,
    Meta(
        max_length=128,
        pattern=TAG_PATTERN,
        description="letters, digits, dots, dashes and underscores, a dot or dash not first",
        examples=["1.2"],
    ),
]
RunnerName: TypeAlias = Annotated[
    str,
    Meta(
        max_length=63,
        pattern=RUNNER_PATTERN,
        description="lowercase letters and digits, with dashes between them",
        examples=["desktop"],
    ),
]
Pin: TypeAlias = Annotated[
    str,
    Meta(
        min_length=64,
        max_length=64,
        pattern=PIN_PATTERN,
        description="64 hexadecimal digits, in small letters",
        examples=["d8a28c17d9704b94faba97b887f8d03ccc27d7b0d7c80828038cc1e0d1ac48bb"],
    ),
]
SecretId: TypeAlias = Annotated[
    str,
    Meta(
        max_length=128,
        pattern=SECRET_PATTERN,
        description="letters, digits, dots, dashes and underscores, a dot or dash not first",
        examples=["npm"],
    ),
]
EnvironmentName: TypeAlias = Annotated[
    str,
    Meta(
        max_length=63,
        pattern=ENVIRONMENT_PATTERN,
        description="lowercase letters and digits, with dashes between them",
        examples=["preview"],
    ),
]
# What a caller chooses to make a call replayable: `key` of a submit, `request_id` of an acquire.
ReplayKey: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=128, examples=["deployment-17"])
]
# What builds of one thing share ("acme/web:main"): a newer one ends the older ones.
GroupName: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=256, examples=["acme/web:main"])
]
ShortText: TypeAlias = Annotated[str, Meta(max_length=1024)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
Fence: TypeAlias = Annotated[int, Meta(ge=1, le=2**31)]
