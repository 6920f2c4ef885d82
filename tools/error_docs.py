"""Write docs/errors.md: one heading for each problem type, so that its URN leads somewhere.

All of it comes from `pierhead.protocol.problem`. `--check` writes nothing and ends with 1 when the
page is stale.
"""

import sys
from pathlib import Path
from typing import Final

from pierhead.protocol.errors import error_for
from pierhead.protocol.problem import PROBLEM_TYPES, REMEDIES, ProblemType, problem

ROOT: Final = Path(__file__).resolve().parent.parent
TARGET: Final = ROOT / "docs" / "errors.md"
HEAD: Final = """\
# Problems

<!-- Written by tools/error_docs.py from `pierhead.protocol.problem`: `make docs`. -->

Every refusal is a document of type `application/problem+json` (RFC 9457).
Its `type` is the identity of the problem: `urn:pierhead:problem:` and one of the names below.
Names are only ever added, and the status and title of a name never change.
`detail` says what happened this time, and `hint` what to do next; the usual ones are below.
The client raises one class of `pierhead.protocol.errors` for each.
"""


def section(kind: ProblemType) -> str:
    """Return the part of the page for one type."""
    raised = type(error_for(problem(kind.slug, ""))).__name__
    return (
        f"\n## {kind.slug}\n\n{kind.title}.\nHint: {REMEDIES[kind.slug]}.\n\n"
        f"HTTP {kind.status}; the client raises `{raised}`.\n"
    )


def page() -> str:
    """Return the whole page."""
    return HEAD + "".join(section(kind) for kind in PROBLEM_TYPES.values())


def main() -> int:
    """Write the page, or compare it."""
    if "--check" in sys.argv[1:]:
        if TARGET.is_file() and TARGET.read_text() == page():
            return 0
        print(f"{TARGET.relative_to(ROOT)} is stale: make docs", file=sys.stderr)
        return 1
    TARGET.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
