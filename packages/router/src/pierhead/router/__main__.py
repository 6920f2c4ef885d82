"""`python -m pierhead.router`: the control plane's process, without the weight of the frame."""

import argparse
import sys
from pathlib import Path

from pierhead.protocol.errors import PierheadError
from pierhead.protocol.lean import passed_over
from pierhead.router.config import DEFAULT_PORT, LETS_ENCRYPT, Settings, data_folder
from pierhead.router.domain.errors import Refused


def arguments() -> argparse.ArgumentParser:
    """Return what the process understands; `pierhead serve` passes it on."""
    parser = argparse.ArgumentParser(prog="pierhead serve")
    parser.add_argument("--only", choices=["registry"])
    parser.add_argument("--data", type=Path, default=data_folder())
    parser.add_argument("--config", type=Path, default=Path.home() / ".config/pierhead")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT)
    parser.add_argument("--public-url")
    parser.add_argument("--behind-proxy", dest="proxies", action="append", default=[])
    parser.add_argument("--domain")
    parser.add_argument("--domain-port", type=int, default=443, help="0: at --port")
    parser.add_argument("--web-port", type=int, default=80)
    parser.add_argument("--acme", default=LETS_ENCRYPT)
    parser.add_argument("--no-here", dest="here", action="store_false")
    parser.add_argument("--insecure-http", action="store_true")
    parser.add_argument("--keep-builds", dest="keep_builds_days", type=int, default=90)
    parser.add_argument("--keep-logs", dest="keep_logs_days", type=int, default=30)
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--held-fd", type=int)
    parser.add_argument("--end-with-input", action="store_true")
    parser.add_argument("--time-scale", type=float, default=1.0)
    return parser


def main() -> int:
    """Run until a signal comes; return the exit code."""
    said = vars(arguments().parse_args())
    # What httpx and structlog load for terminals is 8 MB, for a process that has none.
    with passed_over("httpx._main", "rich"):
        if said.pop("only"):
            from pierhead.router.registry_app import main as serve  # noqa: PLC0415
        else:
            from pierhead.router.app import main as serve  # noqa: PLC0415
    read = {"proxies": tuple(said["proxies"]), "domain_port": said["domain_port"] or None}
    settings = Settings(**{**said, **read})
    try:
        serve(settings)
    except Refused as error:
        print(f"error: {error}\n\nhint: {error.hint}", file=sys.stderr)
        return 2
    except PierheadError as error:
        hint = f"\n\nhint: {error.problem.hint}" if error.problem.hint else ""
        print(f"error: {error}{hint}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
