"""The version of the wire protocol, and the header that carries it."""

from typing import Final

PROTOCOL: Final = 1
PROTOCOL_HEADER: Final = "Pierhead-Protocol"
FENCE_HEADER: Final = "Pierhead-Fence"
OFFSET_HEADER: Final = "Upload-Offset"
RELEASE: Final = "0.1.0"
