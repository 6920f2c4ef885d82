"""What `pierhead build` is told: each option, its help, and how what is typed is read."""

from pathlib import Path
from typing import Annotated, Final, TypeAlias, get_args

import typer

from pierhead.protocol.cli.given import PROGRESS, formed, one_of, whole
from pierhead.protocol.ids import EnvironmentName, GroupName, ProjectName, ReplayKey
from pierhead.protocol.plan import TIMEOUT_SECONDS_MAX, IfNobody, Name

TIMEOUT_SECONDS: Final = 1800
Texts: TypeAlias = list[str] | None

Context = Annotated[str, typer.Argument(help="Folder with the context", metavar="PATH")]
Tags = Annotated[Texts, typer.Option("-t", "--tag", help="NAME or NAME:TAG")]
File = Annotated[str | None, typer.Option("-f", "--file", help="Dockerfile; - is standard input")]
BuildArgs = Annotated[Texts, typer.Option(help="NAME=VALUE, or NAME")]
Secrets = Annotated[Texts, typer.Option(help="id=ID,env=NAME or id=ID,src=FILE, for RUN --mount")]
AllowSecretArgs = Annotated[
    bool, typer.Option("--allow-secret-args", help="Build arguments may look like secrets")
]
Target = Annotated[str | None, typer.Option(help="Stage to build", callback=formed(Name))]
Labels = Annotated[Texts, typer.Option(help="NAME=VALUE")]
Platforms = Annotated[
    Texts, typer.Option(help="linux/amd64, say, or linux/amd64,linux/arm64: one image for all")
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Build every step")]
Pull = Annotated[bool, typer.Option("--pull", help="Look for newer base images")]
Network = Annotated[str, typer.Option(help="default, or none")]
AddHosts = Annotated[Texts, typer.Option(help="NAME:ADDRESS")]
ShmSize = Annotated[str | None, typer.Option(help="Size of /dev/shm: 256m")]
Ulimits = Annotated[Texts, typer.Option(help="NAME=SOFT:HARD")]
Outputs = Annotated[
    Texts, typer.Option("-o", "--output", help="FILE.tar, or type=oci|docker|tar,dest=FILE")
]
Load = Annotated[bool, typer.Option("--load", help="Also into the local engine")]
IdFile = Annotated[Path | None, typer.Option(help="Gets the image's id")]
MetadataFile = Annotated[Path | None, typer.Option(help="Gets digests, as JSON")]
Shown = Annotated[
    str, typer.Option(help="auto, plain (the whole log) or quiet", callback=one_of(*PROGRESS))
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Only the reference")]
AsJson = Annotated[bool, typer.Option("--json", help="Events as JSON lines")]
Detach = Annotated[bool, typer.Option("--detach", help="Do not wait; print the id")]
Key = Annotated[
    str | None, typer.Option(help="The same key is the same build", callback=formed(ReplayKey))
]
Project = Annotated[
    str | None,
    typer.Option(help="Otherwise -t's or the folder's name", callback=formed(ProjectName)),
]
Environment = Annotated[
    str,
    typer.Option(
        help="Of the project; what is not production gets less trust",
        callback=formed(EnvironmentName),
    ),
]
On = Annotated[Texts, typer.Option(help="Only these runners; here is this machine")]
Supersedes = Annotated[
    str | None,
    typer.Option(help="End the older builds of this group: web:main", callback=formed(GroupName)),
]
Nobody = Annotated[
    str, typer.Option(help="here, wait or fail", callback=one_of(*get_args(IfNobody)))
]
Timeout = Annotated[
    int,
    typer.Option(
        metavar="SECONDS",
        help="That the build may take",
        parser=whole("--timeout", 1, TIMEOUT_SECONDS_MAX, TIMEOUT_SECONDS),
    ),
]
