"""`python -m pierhead.runner here|start`: the service without the weight of the command line."""

import asyncio
import json
import os
import sys
from pathlib import Path

from pierhead.protocol.environment import STAYS_DOWN
from pierhead.protocol.errors import PierheadError
from pierhead.protocol.lean import passed_over
from pierhead.runner.config import Joined, joined_before, load_joined, state_folder

ORDERS_BYTES_MAX = 64 * 1024


def _first_line() -> bytes:
    """Read the orders byte by byte: what follows the line is for whoever watches the input."""
    line = b""
    while not line.endswith(b"\n") and len(line) < ORDERS_BYTES_MAX:
        byte = os.read(0, 1)
        if not byte:
            break
        line += byte
    return line


def main(arguments: list[str]) -> int:
    """Run as the control plane's own runner (`here`), or as a machine that joined (`start`)."""
    # What httpx and structlog load for terminals is 8 MB, for a process that has none.
    with passed_over("httpx._main", "rich"):
        from pierhead.runner.app import work  # noqa: PLC0415
        from pierhead.runner.log import configure  # noqa: PLC0415

    configure()
    try:
        if arguments == ["here"]:
            orders = json.loads(_first_line())
            state = Path(orders.pop("state_dir"))
            joined = Joined(name="here", insecure_http=True, **orders)
            asyncio.run(work(joined, state, end_with_input=True))
        elif arguments == ["start"]:
            state = state_folder()
            asyncio.run(work(load_joined(state), state, end_with_input=False))
        else:
            print("error: expected here or start", file=sys.stderr)
            return 2
    except PierheadError as error:
        hint = f"\n\nhint: {error.problem.hint}" if error.problem.hint else ""
        print(f"error: {error}{hint}", file=sys.stderr)
        return STAYS_DOWN if arguments == ["start"] and not joined_before(state_folder()) else 1
    except OSError as error:
        print(f"error: {error}\n\nhint: pierhead doctor", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
