"""Does an envelope tell the truth about the image that its attempt pushed?

Nothing the runner says of an image is believed: the manifest and the configuration are read from
what it pushed, and every digest was checked when they arrived. What differs in a digest or the
platform is of another image, and refused; all else is taken from the two documents.
"""

import json
from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec.structs import replace

from pierhead.protocol.codec import from_wire, to_wire
from pierhead.protocol.errors import Invalid
from pierhead.protocol.image import read_image
from pierhead.protocol.result import Envelope, PlatformImage
from pierhead.router.domain.errors import ResultMismatch
from pierhead.router.ports.builds import StoredBuild
from pierhead.router.ports.store import Ledger

CONFIG_BYTES_MAX = 4 * 1024 * 1024
# Only of these did the push check that the configuration and the layers are there, as it says.
_IMAGE_TYPES = {
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
}


ReadBlob: TypeAlias = Callable[[str], bytes]  # of a small one that is there


def true_envelope(
    ledger: Ledger,
    stored: StoredBuild,
    attempt: str,
    envelope: Envelope,
    read: ReadBlob,
) -> Envelope:
    """Return the envelope with all that the image itself says, in place of what its runner said.

    Raises:
        ResultMismatch: it is of another image than was pushed or asked for, and in what.
    """
    project, digest = stored.submit.project, envelope.manifest_digest
    manifest = ledger.manifest(project, digest, attempt) if digest else None
    if digest is None or manifest is None:
        raise ResultMismatch(f"the manifest {digest} was not pushed by this attempt")
    if manifest.media_type not in _IMAGE_TYPES:
        raise ResultMismatch(f"the manifest is of the kind {manifest.media_type}, not an image")
    config_digest = (_document(manifest.body).get("config") or {}).get("digest")
    if config_digest is None or config_digest != envelope.config_digest:
        raise ResultMismatch(f"the configuration is {config_digest}, not {envelope.config_digest}")
    true = _filled(envelope, manifest.body, read(config_digest))
    _compare(envelope, true.platforms[0], stored.submit.plan.platform)
    return true


def _compare(envelope: Envelope, image: PlatformImage, wanted: str | None) -> None:
    said = tuple(image.platform for image in envelope.platforms)
    if said != (image.platform,) or wanted not in (None, image.platform):
        asked = f", {wanted} was asked for" if wanted else ""
        shown = ", ".join(said) or "none"
        raise ResultMismatch(f"the image is for {image.platform}, the result says {shown}{asked}")
    if _digests(envelope.platforms[0]) != _digests(image):
        raise ResultMismatch("the platform's digests are not those of the manifest")


def _digests(image: PlatformImage) -> tuple[str, str, tuple[str, ...]]:
    return image.manifest_digest, image.config_digest, image.layers


def _filled(envelope: Envelope, manifest: bytes, config: bytes) -> Envelope:
    """Read the image; what it says has the bounds of an envelope, or is no image for us."""
    try:
        image = read_image(manifest, config)
        filled = replace(envelope, platforms=(image.platform,), config=image.config)
        return from_wire(Envelope, to_wire(filled))
    except (ValueError, RecursionError, Invalid) as error:
        raise ResultMismatch(f"what was pushed is not an image: {error}") from error


def _document(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ResultMismatch("what was pushed is not an image") from error
    if not isinstance(found, dict):
        raise ResultMismatch("what was pushed is not an image")
    return found
