"""The index of an image for several platforms, made from the manifests that its builds pushed.

The bytes are canonical: the same manifests in the same order give the same digest, whoever makes it
and whenever (image-spec, image-index.md).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pierhead.router.domain.manifest import OCI_INDEX


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One platform's manifest."""

    platform: str
    media_type: str
    digest: str
    size_bytes: int  # of the manifest itself


def index_of(parts: Sequence[Part]) -> bytes:
    """Return the index, in the order of the parts."""
    index = {
        "schemaVersion": 2,
        "mediaType": OCI_INDEX,
        "manifests": [_descriptor(part) for part in parts],
    }
    return json.dumps(index, separators=(",", ":")).encode()


def _descriptor(part: Part) -> dict[str, Any]:
    os, architecture, *variant = part.platform.split("/")
    platform = {"architecture": architecture, "os": os}
    return {
        "mediaType": part.media_type,
        "digest": part.digest,
        "size": part.size_bytes,
        "platform": {**platform, "variant": variant[0]} if variant else platform,
    }
