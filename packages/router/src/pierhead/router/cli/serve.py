"""`pierhead serve`: a control plane in the foreground."""

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from pierhead.protocol.cli.given import an_address, one_of, whole
from pierhead.protocol.cli.place import config_folder
from pierhead.protocol.cli.speak import tell
from pierhead.router.cli.reached import a_name, a_network, a_place, an_origin
from pierhead.router.config import ALL_ADDRESSES, DEFAULT_PORT, LETS_ENCRYPT, data_folder

DAYS_MAX: Final = 36_500


def command(
    only: Annotated[
        str | None,
        typer.Option(
            help="registry: run that part in this process, beside `pierhead serve`",
            callback=one_of("registry"),
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(help="Address to listen on; over TLS beyond this machine", callback=a_place),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            metavar="NUMBER",
            help="Port; 0 takes any",
            parser=whole("--port", 0, 65535, DEFAULT_PORT),
        ),
    ] = DEFAULT_PORT,
    data: Annotated[Path | None, typer.Option(help="Where everything is kept")] = None,
    public_url: Annotated[
        str | None, typer.Option(help="How others reach it", callback=an_origin)
    ] = None,
    no_here: Annotated[
        bool, typer.Option("--no-here", help="Do not build on this machine")
    ] = False,
    domain: Annotated[
        str | None,
        typer.Option(help="Public name; its certificate comes by ACME", callback=a_name),
    ] = None,
    domain_port: Annotated[
        int,
        typer.Option(
            metavar="NUMBER",
            help="Port of the public name; 0: the same, proven on port 80",
            parser=whole("--domain-port", 0, 65535, 443),
        ),
    ] = 443,
    acme: Annotated[
        str, typer.Option(help="Directory of the ACME server", callback=an_address)
    ] = LETS_ENCRYPT,
    behind_proxy: Annotated[
        list[str] | None,
        typer.Option(
            help="Network of the reverse proxy that has the certificate", callback=a_network
        ),
    ] = None,
    insecure_http: Annotated[
        bool, typer.Option("--insecure-http", help="Plain HTTP beyond this machine")
    ] = False,
    keep_builds: Annotated[
        int,
        typer.Option(
            metavar="DAYS",
            help="To keep builds that ended",
            parser=whole("--keep-builds", 1, DAYS_MAX, 90),
        ),
    ] = 90,
    keep_logs: Annotated[
        int,
        typer.Option(
            metavar="DAYS", help="To keep their logs", parser=whole("--keep-logs", 1, DAYS_MAX, 30)
        ),
    ] = 30,
) -> None:
    """Run a control plane in the foreground, until it is told to stop."""
    import pierhead.router.app  # noqa: F401, PLC0415 - says now what is not installed

    usual = ALL_ADDRESSES if domain else "127.0.0.1"
    arguments = serve_arguments(
        data or data_folder(),
        host or usual,
        port,
        public_url=public_url,
        behind_proxy=tuple(filter(None, behind_proxy or ())),
        domain=domain,
        domain_port=domain_port,
        acme=acme,
    )
    arguments += ["--only", only] if only else []
    arguments += ["--keep-builds", str(keep_builds), "--keep-logs", str(keep_logs)]
    arguments += ["--no-here"] if no_here else []
    arguments += ["--insecure-http"] if insecure_http else []
    tell(f"data      {data or data_folder()}")
    tell(f"token     {config_folder() / 'token'} (mode 0600)")
    # The frame of the command weighs more than the control plane itself; leave it behind.
    os.execv(sys.executable, arguments)  # noqa: S606 - no shell is what is wanted here


def serve_arguments(
    data: Path,
    host: str,
    port: int,
    *,
    public_url: str | None = None,
    behind_proxy: tuple[str, ...] = (),
    domain: str | None = None,
    domain_port: int = 443,
    acme: str = LETS_ENCRYPT,
) -> list[str]:
    """Return the command line of the control plane's own process."""
    words = ["--data", str(data), "--config", str(config_folder())]
    words += ["--host", host, "--port", str(port)]
    words += ["--public-url", public_url] if public_url else []
    for network in behind_proxy:
        words += ["--behind-proxy", network]
    if domain:
        words += ["--domain", domain, "--domain-port", str(domain_port), "--acme", acme]
    return [sys.executable, "-m", "pierhead.router", *words]
