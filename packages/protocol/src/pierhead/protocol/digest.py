"""Content digests: `sha256:` and 64 hex digits, and nothing else.

The image spec allows other algorithms; sha256 is the only one that every registry and engine
accepts (image-spec, descriptor.md, "Registered Algorithms").
"""

import hashlib
import hmac
import re
from collections.abc import Iterable
from typing import Annotated, Final, NewType, TypeAlias

from msgspec import Meta

DIGEST_PATTERN: Final = r"^sha256:[0-9a-f]{64}\Z"
Digest = NewType("Digest", str)
DigestText: TypeAlias = Annotated[
    str,
    Meta(
        max_length=71,
        pattern=DIGEST_PATTERN,
        description="sha256: and 64 digits of lowercase hexadecimal",
        examples=["sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"],
    ),
]

_DIGEST = re.compile(DIGEST_PATTERN)


def parse_digest(text: str) -> Digest:
    """Return `text` as a digest.

    Raises:
        ValueError: it is not one.
    """
    if not _DIGEST.match(text):
        raise ValueError(f"not a sha256 digest: {text[:80]!r}")
    return Digest(text)


def digest_of(data: bytes) -> Digest:
    """Return the digest of `data`."""
    return Digest("sha256:" + hashlib.sha256(data).hexdigest())


def same_digest(one: str, other: str) -> bool:
    """Compare in constant time: digests also stand for secrets here (token hashes)."""
    return hmac.compare_digest(one.encode(), other.encode())


class RunningDigest:
    """The digest of a stream, with its size in bytes."""

    def __init__(self, chunks: Iterable[bytes] = ()) -> None:
        self._hash = hashlib.sha256()
        self.size_bytes = 0
        for chunk in chunks:
            self.update(chunk)

    def update(self, chunk: bytes) -> None:
        """Add the next bytes."""
        self._hash.update(chunk)
        self.size_bytes += len(chunk)

    def digest(self) -> Digest:
        """Return the digest of what was added so far."""
        return Digest("sha256:" + self._hash.hexdigest())
