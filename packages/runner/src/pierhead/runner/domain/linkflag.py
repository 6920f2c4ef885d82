"""`COPY --link`, for a builder that does not know it: the image has the same files without.

BuildKit makes a layer of its own of such a step, so that another base image leaves it as it is.
Nothing else of the Dockerfile is touched, and its lines stay where they are.
"""

import re
from typing import Final

from pierhead.runner.domain.dockerfile import BETWEEN, Instruction, with_changed

_FLAGS: Final = re.compile(rf"[ \t]*(?:COPY|ADD){BETWEEN}(?:--\S+{BETWEEN})*", re.I)
_LINK: Final = re.compile(r"--link(?:=(?:true|false|1|0))?(?![^\s\\])", re.I)


def without_links(text: str) -> str:
    """Return a Dockerfile whose steps do not ask for it."""

    def change(one: Instruction, rest: str) -> str:
        if "--link" not in one.text.lower() or one.words[0] not in {"COPY", "ADD"}:
            return rest
        found = _FLAGS.match(rest)
        return _LINK.sub("", found[0]) + rest[found.end() :] if found else rest

    return with_changed(text, change)
