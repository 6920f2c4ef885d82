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

WHAT_TO_DO: Final = {
    "invalid-document": "The detail names the field that is wrong. Send it differently.",
    "version-unsupported": "Upgrade whichever side is older.",
    "unauthenticated": "Send a token that this control plane gave out.",
    "token-expired": "Ask for a new token.",
    "token-spent": "Stop: the build is over, and its token with it.",
    "not-allowed": "Use a token with more rights; the detail says which right is missing.",
    "not-found": "Check the name. What a token may not see is not found either.",
    "method-not-allowed": "Look up which methods the path takes.",
    "lease-lost": "Stop working on the build: it was given to another attempt.",
    "build-finished": "Stop working on the build; `state` says how it ended.",
    "key-reused": "Choose a new key: this one stands for another request.",
    "offset-mismatch": "Go on at `next_offset`.",
    "in-use": "Wait for the builds, or cancel them, then ask again.",
    "limit-reached": "Remove what nobody needs any more, then ask again.",
    "runner-name-taken": "Choose another name for the runner.",
    "session-superseded": "Stop: another process of the same runner works now.",
    "join-code-used": "Ask the owner for a new code: `pierhead add NAME --builds`.",
    "too-large": "Send less; `GET /api/capabilities` has the limits.",
    "context-too-large": "Leave out what the build does not need, in `.dockerignore`.",
    "digest-mismatch": "The content was damaged on its way. Send it again from the start.",
    "result-mismatch": "The runner returned something else than was asked for; the build fails.",
    "plan-unsupported": "The detail says what cannot be done, and the hint what to use.",
    "secret-argument": "Give it with `--secret`. If it is none: `--allow-secret-args`.",
    "upstream-refused": "The detail says which registry, and as whom it was asked.",
    "no-eligible-runner": "`pierhead builds why` names each runner and why it does not take it.",
    "rate-limited": "Wait `retry_after_ms`, then ask again.",
    "internal-error": "It is a mistake in pierhead. `instance` finds it in the server's log.",
    "draining": "The server is stopping. Ask again: the next process answers.",
    "dependency-unavailable": "Ask again later; the detail names what does not answer.",
    "storage-full": "Free space on the disk of the control plane.",
}


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
