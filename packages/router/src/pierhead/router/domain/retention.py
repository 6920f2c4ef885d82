"""How long a control plane keeps what nobody asks for any more."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pierhead.router.domain.build import FINAL, Build
from pierhead.router.domain.errors import InvalidRequest

# A push asks which blobs are here before it relies on them; this is longer than any push.
GRACE_MIN: Final = timedelta(hours=4)
# A machine that starts may not know the time yet: it asks others for it, and then it jumps.
LONG_AWAY: Final = timedelta(days=7)
TIME_IS_SET: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long things stay after their end. `grace`: content that nothing needs."""

    builds: timedelta = timedelta(days=90)  # and the image of one, when no tag is on it
    logs: timedelta = timedelta(days=30)
    grace: timedelta = timedelta(days=1)
    mirrored: timedelta = timedelta(days=14)  # base images, after their last use

    def __post_init__(self) -> None:
        if self.grace < GRACE_MIN:
            detail = f"content has to stay for {GRACE_MIN} at least, or a push may lose it"
            raise InvalidRequest(detail, hint="keep it for a day")
        if min(self.builds, self.logs) < timedelta(days=1):
            raise InvalidRequest("builds and logs are kept for a day at least")


def collects_after(away: timedelta) -> timedelta:
    """Return how long after a start it may be judged what is old.

    `away`: how long ago it was, by this machine's clock, when the control plane last ran. After
    weeks it is more likely that the clock is wrong, and what is taken then is gone for ever.
    """
    return TIME_IS_SET if away > LONG_AWAY else timedelta()


def is_over(build: Build, kept: timedelta, *, now: datetime) -> bool:
    """Say whether a build ended so long ago."""
    ended = build.finished_at
    return build.state in FINAL and ended is not None and now - ended > kept
