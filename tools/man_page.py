"""Write the manual page of `pierhead` from its commands; wheels install it below share/man.

`--check` writes nothing and ends with 1 when the page is not what the commands say.
"""

import sys
from pathlib import Path
from typing import Final

from pierhead.protocol.cli.commands import COMMANDS
from pierhead.protocol.cli.manual import manual
from pierhead.protocol.cli.tree import tree_of

ROOT: Final = Path(__file__).resolve().parent.parent
TARGET: Final = ROOT / "packages/protocol/data/share/man/man1/pierhead.1"


def main() -> int:
    """Write the page, or compare it."""
    page = manual([tree_of(command) for command in COMMANDS])
    if "--check" in sys.argv[1:]:
        if TARGET.is_file() and TARGET.read_text() == page:
            return 0
        print(f"{TARGET.relative_to(ROOT)} is stale: make docs", file=sys.stderr)
        return 1
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
