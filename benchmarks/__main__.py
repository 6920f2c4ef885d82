"""Run all benchmarks, or those that are named, and end with one line for each figure.

Falling short of a goal is told, and is no error: the exit code says whether it could be measured.
"""

import asyncio
import importlib
import pkgutil
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TypeAlias

import benchmarks
from benchmarks.figure import Figure

Measure: TypeAlias = Callable[[Path, Callable[[str], None]], Coroutine[None, None, list[Figure]]]


def discover() -> dict[str, Measure]:
    """Return all benchmarks by name."""
    modules = [
        importlib.import_module(f"benchmarks.{found.name}")
        for found in pkgutil.iter_modules(benchmarks.__path__)
        if found.name != "__main__"
    ]
    names = {module.__name__.rpartition(".")[2]: module for module in modules}
    return {name: module.measure for name, module in names.items() if hasattr(module, "measure")}


def say(line: str) -> None:
    """Print a line of the run at once."""
    print(f"  {line}", flush=True)


def main(wanted: list[str]) -> int:
    """Measure, then print the figures."""
    known = discover()
    unknown = [name for name in wanted if name not in known]
    if unknown:
        print(f"error: no benchmark {', '.join(unknown)}\n\nhint: {', '.join(known)}")
        return 2
    lines = []
    for name in wanted or list(known):
        print(f"{name}: {(sys.modules[f'benchmarks.{name}'].__doc__ or '').splitlines()[0]}")
        with tempfile.TemporaryDirectory(prefix="pierhead-bench-") as folder:
            figures = asyncio.run(known[name](Path(folder), say))
        lines += [figure.line(name) for figure in figures]
    print(*lines, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
