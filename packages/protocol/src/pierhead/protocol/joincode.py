"""The join code: `ph1_<host:port>_<pin>_<secret>`, one string with nothing to mistype.

The pin is the fingerprint of the control plane's own certificate authority. It is `-` where there
is none: the authorities of the system are asked then, and on loopback nobody is.
"""

import re
from dataclasses import dataclass
from typing import Final

NO_PIN: Final = "-"
_CODE: Final = re.compile(
    r"ph1_(?P<address>[A-Za-z0-9.:\[\]-]{3,261})_(?P<pin>-|[0-9a-f]{64})_(?P<secret>[A-Za-z0-9_-]{16,256})\Z"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAddress:
    """A join code, taken apart."""

    address: str  # host:port
    pin: str
    secret: str

    @property
    def host(self) -> str:
        """The host alone."""
        return self.address.rpartition(":")[0].strip("[]")

    def __str__(self) -> str:
        return f"ph1_{self.address}_{self.pin}_{self.secret}"


def parse_join_code(text: str) -> JoinAddress:
    """Take a join code apart.

    Raises:
        ValueError: it is not one, or not all of it.
    """
    found = _CODE.match(text.strip())
    if found is None:
        raise ValueError("this is not a whole join code: it begins with ph1_ and is one word")
    return JoinAddress(address=found["address"], pin=found["pin"], secret=found["secret"])
