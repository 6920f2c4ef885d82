"""`RUN --mount=type=secret,id=npm,env=NPM_TOKEN`, for a builder that only knows files.

buildah 1.28 refuses `env=` in a mount. What it means can be said with a file and the step's shell:
the secret is mounted where it would be without `env=`, and the step begins by reading it. Nothing
else of the Dockerfile is touched, and its lines stay where they are.
"""

import re
from typing import Final

from pierhead.runner.domain.dockerfile import BETWEEN, Instruction, with_changed

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FLAGS: Final = re.compile(rf"[ \t]*RUN{BETWEEN}(?:--\S+{BETWEEN})*", re.I)
_MOUNT: Final = re.compile(r"--mount=(\S+)")


def with_secret_files(text: str) -> str:
    """Return a Dockerfile whose steps read from files what they asked for as variables.

    Raises:
        ValueError: a step that asks for it has no shell to read it.
    """

    def change(one: Instruction, rest: str) -> str:
        asks = "type=secret" in one.text and "env=" in one.text and one.words[0] == "RUN"
        return _rewritten(rest, one.line) if asks else rest

    return with_changed(text, change)


def _rewritten(rest: str, line: int) -> str:
    found = _FLAGS.match(rest)
    if found is None:
        return rest
    reading: list[str] = []

    def rewrite(mount: re.Match[str]) -> str:
        options = mount[1].split(",")
        given = dict(option.partition("=")[::2] for option in options)
        name, secret_id = given.get("env", ""), given.get("id", "")
        if given.get("type") != "secret" or not _NAME.match(name) or not secret_id:
            return mount[0]
        places = (given.get(key) for key in ("target", "dst", "destination"))
        place = next(filter(None, places), f"/run/secrets/{secret_id}")
        reading.append(f'if [ -f {place} ]; then {name}="$(cat {place})"; export {name}; fi; ')
        kept = [option for option in options if not option.startswith("env=")]
        # A variable is there for whichever user the step runs as.
        return "--mount=" + ",".join(kept if "mode" in given else [*kept, "mode=0444"])

    flags, command = _MOUNT.sub(rewrite, found[0]), rest[found.end() :]
    if reading and command.startswith("["):
        raise ValueError(f"line {line}: a step in brackets has no shell to put a secret into env=")
    return flags + "".join(reading) + command
