"""Write docs/reference/openapi.json: the API as OpenAPI 3.1, from the table of endpoints.

`--check` writes nothing and ends with 1 when the file is not what the table says. It is the same
document that a control plane serves at `/api/openapi.json`.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final, cast

from pierhead.protocol.version import RELEASE
from pierhead.router.http.attempts import AttemptHandlers
from pierhead.router.http.authority import AuthorityHandlers
from pierhead.router.http.builds import BuildHandlers
from pierhead.router.http.contexts import ContextHandlers
from pierhead.router.http.projects import ProjectHandlers, TokenHandlers
from pierhead.router.http.registries import LoginHandlers
from pierhead.router.http.routes import Handlers, all_endpoints
from pierhead.router.http.run import RunHandlers
from pierhead.router.http.runners import RunnerHandlers
from pierhead.server.endpoint import Endpoint
from pierhead.server.openapi import openapi

ROOT: Final = Path(__file__).resolve().parent.parent
TARGET: Final = ROOT / "docs" / "reference" / "openapi.json"


def endpoints() -> list[Endpoint]:
    """Return the whole table. Handlers are only named here, so the classes will do."""
    return all_endpoints(
        Handlers(
            builds=cast("BuildHandlers", BuildHandlers),
            run=cast("RunHandlers", RunHandlers),
            contexts=cast("ContextHandlers", ContextHandlers),
            attempts=cast("AttemptHandlers", AttemptHandlers),
            runners=cast("RunnerHandlers", RunnerHandlers),
            projects=cast("ProjectHandlers", ProjectHandlers),
            tokens=cast("TokenHandlers", TokenHandlers),
            logins=cast("LoginHandlers", LoginHandlers),
            authority=cast("AuthorityHandlers", AuthorityHandlers),
        )
    )


def document() -> str:
    """Return the file."""
    found: dict[str, Any] = openapi(endpoints(), title="pierhead router", release=RELEASE)
    return json.dumps(found, indent=2) + "\n"


def main() -> int:
    """Write the file, or compare it."""
    if "--check" in sys.argv[1:]:
        if TARGET.is_file() and TARGET.read_text() == document():
            return 0
        print(f"{TARGET.relative_to(ROOT)} is stale: make docs", file=sys.stderr)
        return 1
    TARGET.write_text(document())
    return 0


if __name__ == "__main__":
    sys.exit(main())
