"""A process of ours gets what it obeys of an environment, and no secret that is in it."""

from pierhead.protocol.environment import OBEYED, for_a_process

NEEDED = {"PATH": "/bin", "HOME": "/root", "LC_ALL": "C", "TMPDIR": "/t", "PIERHEAD_DATA": "/d"}
OTHERS = {
    "NPM_TOKEN": "x",
    "DATABASE_URL": "x",
    "PIERHEAD_TOKEN": "x",
    "PIERHEAD_JOIN": "x",
    "AWS_SECRET_ACCESS_KEY": "x",
    "LD_PRELOAD": "x",
}


def test_only_what_a_process_needs_is_passed_on() -> None:
    obeyed = dict.fromkeys(OBEYED, "x")

    assert for_a_process({**NEEDED, **obeyed, **OTHERS}) == {**NEEDED, **obeyed}
