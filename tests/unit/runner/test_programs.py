"""What it means when the programs that build come and go."""

import pytest

from pierhead.runner.domain.programs import changed, missing

THERE = {"buildah": (1, 2), "runc": (1, 3), "ip": (1, 4)}
NO_RUNC = {**THERE, "runc": None}
NEW_RUNC = {**THERE, "runc": (1, 5)}
GONE = "runc is not installed: apt-get install -y --no-install-recommends runc"


def test_what_is_missing_is_told_with_what_installs_it() -> None:
    assert missing(THERE, ("buildah", "runc")) == []
    assert missing(NO_RUNC, ("buildah", "runc")) == [GONE]
    assert missing(NO_RUNC, ("buildah", "ip")) == []
    [ip] = missing({"ip": None}, ("ip",))
    assert ip.endswith(" iproute2")


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (THERE, THERE, None),
        (NO_RUNC, NO_RUNC, None),
        (THERE, NO_RUNC, GONE),
        (NO_RUNC, THERE, "runc has changed: what it can do is tried first"),
        (THERE, NEW_RUNC, "runc has changed: what it can do is tried first"),
        (THERE, {**NO_RUNC, "buildah": (1, 9)}, GONE),
    ],
)
def test_what_is_not_as_it_was_has_the_machine_tried_again(
    before: dict[str, tuple[int, ...] | None],
    now: dict[str, tuple[int, ...] | None],
    said: str | None,
) -> None:
    assert changed(before, now) == said
