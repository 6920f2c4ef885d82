"""`pierhead build`: like `docker build`, elsewhere.

Here is what happens before the first line: the command line is read and the folder described. What
speaks to a control plane is in `carry`, and imported only then.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pierhead.protocol.cli.given import Url
from pierhead.protocol.cli.speak import USAGE, fail, size, tell
from pierhead.protocol.client.known import Known
from pierhead.protocol.client.leftout import LeftOut
from pierhead.protocol.client.pack import Packed, pack
from pierhead.protocol.plan import Plan
from pierhead.protocol.units import counted
from pierhead.router.cli import flags, options
from pierhead.router.cli.asked import Asked, Wish, check_wish
from pierhead.router.cli.secret import read_secrets
from pierhead.router.domain.errors import Refused
from pierhead.router.domain.secretlike import require_no_secret

_REMOTE: Final = re.compile(r"(https?|git|ssh)://|git@|github\.com/|.+\.git(#|$)")
# What a Dockerfile is called that came from elsewhere.
GIVEN: Final = ".pierhead.Dockerfile"
DOCKERFILE_BYTES_MAX: Final = 1024 * 1024


def command(
    path: options.Context,
    tag: options.Tags = None,
    file: options.File = None,
    build_arg: options.BuildArgs = None,
    secret: options.Secrets = None,
    allow_secret_args: options.AllowSecretArgs = False,
    target: options.Target = None,
    label: options.Labels = None,
    platform: options.Platforms = None,
    no_cache: options.NoCache = False,
    pull: options.Pull = False,
    network: options.Network = "default",
    add_host: options.AddHosts = None,
    shm_size: options.ShmSize = None,
    ulimit: options.Ulimits = None,
    output: options.Outputs = None,
    load: options.Load = False,
    iidfile: options.IdFile = None,
    metadata_file: options.MetadataFile = None,
    progress: options.Shown = "auto",
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
    detach: options.Detach = False,
    key: options.Key = None,
    project: options.Project = None,
    environment: options.Environment = "production",
    on: options.On = None,
    supersedes: options.Supersedes = None,
    if_nobody: options.Nobody = "here",
    timeout: options.Timeout = options.TIMEOUT_SECONDS,
    url: Url = None,
) -> int:
    """Build an image: here, or on your machines."""
    folder = _folder(path)
    names = [flags.tag_of(text) for text in tag or []]
    own = flags.project_of(project, names, folder.resolve().name)
    dockerfile, extra_files = _dockerfile(folder, file)
    platforms = flags.platforms_of(platform or [])
    plan = Plan(
        dockerfile=dockerfile,
        dockerfile_named=_called(file) if extra_files else None,
        target=target,
        build_args=flags.pairs("--build-arg", build_arg or [], from_environment=True),
        labels=flags.pairs("--label", label or [], from_environment=False),
        platform=platforms[0] if len(platforms) == 1 else None,
        no_cache=no_cache,
        pull=pull,
        network=flags.network_of(network),
        add_hosts=flags.host_entries(add_host or []),
        shm_bytes=flags.byte_size(shm_size) if shm_size else None,
        ulimits=flags.ulimits(ulimit or []),
        timeout_seconds=timeout,
    )
    wish = Wish(
        outputs=flags.outputs_of(output or []),
        load=load,
        id_file=iidfile,
        metadata_file=metadata_file,
        names=tuple(f"{name.project}:{name.tag}" for name in names),
        quiet=quiet or as_json,
    )
    check_wish(wish, detach=detach, platforms=platforms)
    asked = Asked(
        folder=folder,
        project=own,
        environment=environment,
        name=names[0].project if names else own,
        tags=tuple(name.tag for name in names),
        plan=plan,
        platforms=platforms if len(platforms) > 1 else (),
        wish=wish,
        key=key,
        on=flags.names_of(on or []),
        supersedes=supersedes,
        if_nobody=if_nobody,  # type: ignore[arg-type]
        quiet=quiet or progress == "quiet",
        as_json=as_json,
        detach=detach,
        raw=progress == "plain",
        secrets=read_secrets(secret or [], os.environb),
        allow_secret_args=allow_secret_args,
    )
    if not allow_secret_args:
        _refuse_secret_arguments(asked.plan)
    # Outside of the loop: there, an interrupt would wait until a large context is packed.
    packed = _pack(asked, extra_files)
    from pierhead.router.cli.carry import carry  # noqa: PLC0415 - the first line was told

    return carry(asked, packed, url)


def prepare_arguments(arguments: Sequence[str]) -> list[str]:
    """Return what is to be parsed; a flag of docker's that is not honoured is named."""
    return flags.honoured(arguments)


def _pack(asked: Asked, extra_files: Mapping[str, bytes]) -> Packed:
    """Describe the context; what did not change since the last time is not read."""
    known, dockerfile = Known.load(asked.folder), asked.plan.dockerfile
    packed = pack(asked.folder, dockerfile=dockerfile, extra_files=extra_files, known=known)
    known.save(asked.folder)
    _tell_context(asked, packed)
    return packed


def _tell_context(asked: Asked, packed: Packed) -> None:
    if asked.quiet:
        return
    largest = ", ".join(_left_out(one) for one in packed.left_out[:3])
    left = f"   (left out {largest}: .dockerignore)" if largest else ""
    tell(f"context   {counted(packed.files, 'file')}, {size(packed.size_bytes)}{left}")
    for warning in packed.warnings:
        tell(f"note      {warning}")


def _refuse_secret_arguments(plan: Plan) -> None:
    """Say it before anything is packed; the router would refuse them, too."""
    try:
        require_no_secret(plan.build_args)
    except Refused as error:
        raise fail(str(error), error.hint) from error


def _folder(path: str) -> Path:
    if path == "-" or (_REMOTE.match(path) and not Path(path).exists()):
        what = "standard input" if path == "-" else path
        hint = (
            "unpack it first: mkdir context && tar -x -C context, then pierhead build context"
            if path == "-"
            else f"git clone {path}, then pierhead build its folder"
        )
        raise fail(f"PATH has to be a folder, and not {what}", hint, USAGE)
    return Path(path)


def _left_out(one: LeftOut) -> str:
    return f"{one.path} {'' if one.whole else 'over '}{size(one.size_bytes)}"


def _called(file: str | None) -> str:
    """Return what people call a Dockerfile that is not in the context."""
    return "the Dockerfile from standard input" if file == "-" else str(file)


def _dockerfile(path: Path, file: str | None) -> tuple[str, dict[str, bytes]]:
    """Return the Dockerfile's name in the context, and its content when it is not there yet."""
    if file == "-":
        return GIVEN, {GIVEN: sys.stdin.buffer.read(DOCKERFILE_BYTES_MAX)}
    if file is None:
        if path.is_dir() and not (path / "Dockerfile").is_file():
            hint = "name it: pierhead build -f PATH"
            raise fail(f"there is no Dockerfile in {path}", hint, USAGE)
        return "Dockerfile", {}
    # As docker means it: from where we are; and, if nothing is there, inside the context.
    found = Path(file) if Path(file).is_file() else path / file
    if path.is_dir() and not found.is_file():
        text = f"-f {file}: there is no such file, neither here nor in {path}"
        raise fail(text, "name it: pierhead build -f PATH", USAGE)
    try:
        return str(found.resolve().relative_to(path.resolve())), {}
    except ValueError:
        with found.open("rb") as outside:
            return GIVEN, {GIVEN: outside.read(DOCKERFILE_BYTES_MAX)}
