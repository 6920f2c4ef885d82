"""Draw the machine of a build into docs/internals/build.md, from the table that the code obeys.

Which edges exist comes from `TRANSITIONS`; what leads along each is written here, because a table
of states does not know it. An edge without such words is an error, and so are words without an
edge. `--check` writes nothing and ends with 1 when the page is stale.
"""

import sys
from pathlib import Path
from typing import Final

from pierhead.router.domain.build import FINAL, TRANSITIONS, State

ROOT: Final = Path(__file__).resolve().parent.parent
TARGET: Final = ROOT / "docs" / "internals" / "build.md"
BEGIN: Final = "<!-- diagram: written by tools/state_diagrams.py -->"
END: Final = "<!-- end of diagram -->"
LEADS: Final = {
    (State.QUEUED, State.LEASED): "Grant",
    (State.QUEUED, State.FAILED): "GiveUp",
    (State.QUEUED, State.CANCELLED): "Cancel",
    (State.LEASED, State.QUEUED): "Release, Lose, Expire",
    (State.LEASED, State.SUCCEEDED): "Report",
    (State.LEASED, State.FAILED): "Report, or the last attempt was lost",
    (State.LEASED, State.CANCELLED): "the attempt ends after Cancel",
}


def diagram() -> str:
    """Return the diagram, edges in the order of the states."""
    edges = [(state, after) for state in State for after in State if after in TRANSITIONS[state]]
    unmatched = set(edges) ^ LEADS.keys()
    if unmatched:
        raise SystemExit(f"tools/state_diagrams.py: no words, or no edge: {sorted(unmatched)}")
    lines = ["stateDiagram-v2", "  [*] --> queued: submit"]
    lines += [f"  {state} --> {after}: {LEADS[state, after]}" for state, after in edges]
    lines += [f"  {state} --> [*]" for state in State if state in FINAL]
    return "\n".join(["```mermaid", *lines, "```"])


def drawn(page: str) -> str:
    """Return the page with the diagram between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"tools/state_diagrams.py: {TARGET.name} has lost its marks")
    return f"{before}{BEGIN}\n{diagram()}\n{END}{after}"


def main() -> int:
    """Write the page, or compare it."""
    page = TARGET.read_text()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(drawn(page))
        return 0
    if page == drawn(page):
        return 0
    print(f"{TARGET.relative_to(ROOT)} is stale: make docs", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
