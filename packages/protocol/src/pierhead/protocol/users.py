"""Users of this machine, as people know them."""

import pwd


def user_name(uid: int) -> str:
    """Return the name of a user; of one without, the number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
