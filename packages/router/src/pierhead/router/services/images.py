"""Does an envelope tell the truth about the image that its attempt pushed?

Nothing the runner says is believed: the manifest and the configuration are read from what it
pushed, and every digest was checked when they arrived.
"""

import json
from collections.abc import Callable
from typing import Any

from pierhead.protocol.platform import normalise_platform
from pierhead.protocol.result import Envelope
from pierhead.router.domain.errors import ResultMismatch
from pierhead.router.ports import Ledger, StoredBuild

CONFIG_BYTES_MAX = 4 * 1024 * 1024
# Only of these did the push check that the configuration and the layers are there.
_IMAGE_TYPES = {
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
}


def check_image(
    ledger: Ledger,
    stored: StoredBuild,
    attempt: str,
    envelope: Envelope,
    read_blob: Callable[[str], bytes],
) -> None:
    """Return if the envelope is true.

    Raises:
        ResultMismatch: it is not, and in what.
    """
    project, digest = stored.submit.project, envelope.manifest_digest
    manifest = ledger.manifest(project, digest, attempt) if digest else None
    if digest is None or manifest is None:
        raise ResultMismatch(f"the manifest {digest} was not pushed by this attempt")
    if manifest.media_type not in _IMAGE_TYPES:
        raise ResultMismatch(f"the manifest is of the kind {manifest.media_type}, not an image")
    body = _document(manifest.body)
    config_digest = (body.get("config") or {}).get("digest")
    if config_digest is None or config_digest != envelope.config_digest:
        raise ResultMismatch(f"the configuration is {config_digest}, not {envelope.config_digest}")
    config = _document(read_blob(config_digest))
    variant = config.get("variant")
    platform = normalise_platform(
        str(config.get("os")), str(config.get("architecture")), str(variant) if variant else None
    )
    wanted = stored.submit.plan.platform
    said = tuple(image.platform for image in envelope.platforms)
    if said != (platform,) or (wanted is not None and wanted != platform):
        asked = f", {wanted} was asked for" if wanted else ""
        raise ResultMismatch(f"the image is for {platform}, the result says {said}{asked}")
    layers = tuple(layer.get("digest") for layer in body.get("layers") or ())
    image = envelope.platforms[0]
    if (image.manifest_digest, image.config_digest, image.layers) != (
        digest,
        config_digest,
        layers,
    ):
        raise ResultMismatch("the platform's digests are not those of the manifest")


def _document(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ResultMismatch("what was pushed is not an image") from error
    if not isinstance(found, dict):
        raise ResultMismatch("what was pushed is not an image")
    return found
