"""Draw the machines of builds into docs/internals/build.md, from the tables that the code obeys.

Which edges exist comes from `TRANSITIONS`; what leads along each is written here, because a table
of states does not know it. An edge without such words is an error, and so are words without an
edge. `--check` writes nothing and ends with 1 when the page is stale.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pierhead.router.domain import build, parent
from pierhead.router.domain.build import FINAL, State

ROOT: Final = Path(__file__).resolve().parent.parent
TARGET: Final = ROOT / "docs" / "internals" / "build.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """One machine: its edges, what leads along each, and where on the page it is."""

    begin: str
    end: str
    edges: Mapping[State, frozenset[State]]
    leads: Mapping[tuple[State, State], str]


OF_BUILDS: Final = {
    (State.QUEUED, State.LEASED): "Grant",
    (State.QUEUED, State.FAILED): "GiveUp",
    (State.QUEUED, State.CANCELLED): "Cancel",
    (State.LEASED, State.QUEUED): "Release, Lose, Expire",
    (State.LEASED, State.SUCCEEDED): "Report",
    (State.LEASED, State.FAILED): "Report, or the last attempt was lost",
    (State.LEASED, State.CANCELLED): "the attempt ends after Cancel",
}


OF_PARENTS: Final = {
    (State.QUEUED, State.LEASED): "the first child began",
    (State.QUEUED, State.FAILED): "no child ever began, one failed",
    (State.QUEUED, State.CANCELLED): "no child ever began, Cancel",
    (State.LEASED, State.SUCCEEDED): "all children succeeded",
    (State.LEASED, State.FAILED): "one failed, and all have ended",
    (State.LEASED, State.CANCELLED): "Cancel, and all have ended",
}
DRAWINGS: Final = (
    Drawing(
        begin="<!-- diagram: written by tools/state_diagrams.py -->",
        end="<!-- end of diagram -->",
        edges=build.TRANSITIONS,
        leads=OF_BUILDS,
    ),
    Drawing(
        begin="<!-- diagram of parents: written by tools/state_diagrams.py -->",
        end="<!-- end of diagram of parents -->",
        edges=parent.TRANSITIONS,
        leads=OF_PARENTS,
    ),
)


def diagram(drawing: Drawing) -> str:
    """Return the diagram, edges in the order of the states."""
    edges = [(state, after) for state in State for after in State if after in drawing.edges[state]]
    unmatched = set(edges) ^ drawing.leads.keys()
    if unmatched:
        raise SystemExit(f"tools/state_diagrams.py: no words, or no edge: {sorted(unmatched)}")
    lines = ["stateDiagram-v2", "  [*] --> queued: submit"]
    lines += [f"  {state} --> {after}: {drawing.leads[state, after]}" for state, after in edges]
    lines += [f"  {state} --> [*]" for state in State if state in FINAL]
    return "\n".join(["```mermaid", *lines, "```"])


def drawn(page: str) -> str:
    """Return the page with each diagram between its marks."""
    for drawing in DRAWINGS:
        before, begin, rest = page.partition(drawing.begin)
        _, end, after = rest.partition(drawing.end)
        if not (begin and end):
            raise SystemExit(f"tools/state_diagrams.py: {TARGET.name} has lost its marks")
        page = f"{before}{drawing.begin}\n{diagram(drawing)}\n{drawing.end}{after}"
    return page


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
