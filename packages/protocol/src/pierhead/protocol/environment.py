"""What of an environment a process of ours is started with, and nothing else.

Whoever types a command, or imports pierhead, has secrets in the environment: of a build, of a
program. A service that outlives the command, or serves others, has no use for them.
"""

from collections.abc import Mapping
from typing import Final

# What every role obeys.
OBEYED: Final = (
    *("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("https_proxy", "http_proxy", "all_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "PIERHEAD_CA", "PIERHEAD_RUNNER_STATE"),
)
# What a process needs besides: where things are, and in which words to speak.
_PLACES: Final = ("PATH", "HOME", "TMPDIR", "VIRTUAL_ENV", "PIERHEAD_DATA", "PIERHEAD_CONFIG")
_WORDS: Final = ("USER", "LOGNAME", "TZ", "LANG", "LANGUAGE", "NO_COLOR")
_NEEDED: Final = frozenset([*_PLACES, *_WORDS, *OBEYED])
_NEEDED_PREFIXES: Final = ("LC_", "XDG_", "PYTHON")
# Tells a process how many seconds it has from the first signal until it is killed.
STOP_WITHIN: Final = "PIERHEAD_STOP_SECONDS"
# The exit code of a process that cannot begin before somebody has done something (EX_CONFIG of
# sysexits.h): nothing starts it again until then.
STAYS_DOWN: Final = 78


def for_a_process(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the part of an environment that a process of ours gets."""
    return {
        name: value
        for name, value in environment.items()
        if name in _NEEDED or name.startswith(_NEEDED_PREFIXES)
    }
