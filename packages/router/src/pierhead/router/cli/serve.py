"""`pierhead serve`: a control plane in the foreground."""

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pierhead.protocol.cli.place import config_folder
from pierhead.protocol.cli.speak import tell
from pierhead.router.config import DEFAULT_PORT, data_folder


class Part(StrEnum):
    """What can run in a process of its own."""

    REGISTRY = "registry"


def command(
    only: Annotated[
        Part | None, typer.Option(help="Run a part of it in this process, beside `pierhead serve`")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes any", min=0, max=65535)] = DEFAULT_PORT,
    data: Annotated[Path | None, typer.Option(help="Where everything is kept")] = None,
    public_url: Annotated[str | None, typer.Option(help="How others reach it")] = None,
    no_here: Annotated[
        bool, typer.Option("--no-here", help="Do not build on this machine")
    ] = False,
    behind_proxy: Annotated[
        list[str] | None,
        typer.Option(help="Network of the reverse proxy that has the certificate"),
    ] = None,
    insecure_http: Annotated[
        bool, typer.Option("--insecure-http", help="Plain HTTP beyond this machine")
    ] = False,
    keep_builds: Annotated[int, typer.Option(help="Days to keep builds that ended", min=1)] = 90,
    keep_logs: Annotated[int, typer.Option(help="Days to keep their logs", min=1)] = 30,
) -> None:
    """Run a control plane in the foreground, until it is told to stop."""
    import pierhead.router.app  # noqa: F401, PLC0415 - says now what is not installed

    arguments = serve_arguments(data or data_folder(), host, port)
    arguments += ["--only", only.value] if only else []
    arguments += ["--public-url", public_url] if public_url else []
    for network in behind_proxy or ():
        arguments += ["--behind-proxy", network]
    arguments += ["--keep-builds", str(keep_builds), "--keep-logs", str(keep_logs)]
    arguments += ["--no-here"] if no_here else []
    arguments += ["--insecure-http"] if insecure_http else []
    tell(f"data      {data or data_folder()}")
    tell(f"token     {config_folder() / 'token'} (mode 0600)")
    # The frame of the command weighs more than the control plane itself; leave it behind.
    os.execv(sys.executable, arguments)  # noqa: S606 - no shell is what is wanted here


def serve_arguments(data: Path, host: str, port: int) -> list[str]:
    """Return the command line of the control plane's own process."""
    place = ["--data", str(data), "--config", str(config_folder())]
    return [sys.executable, "-m", "pierhead.router", *place, "--host", host, "--port", str(port)]
