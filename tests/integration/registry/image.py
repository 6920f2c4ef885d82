"""Small real images as OCI layouts, made here byte by byte, so that tests know every digest."""

import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
BLOB = "application/octet-stream"


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class Image:
    """An image: its three contents."""

    layer: bytes
    config: bytes
    manifest: bytes

    @property
    def digest(self) -> str:
        return digest_of(self.manifest)

    def write(self, folder: Path) -> Path:
        """Write it as an OCI layout."""
        blobs = folder / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        for data in (self.layer, self.config, self.manifest):
            (blobs / digest_of(data).removeprefix("sha256:")).write_bytes(data)
        (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        index = {"schemaVersion": 2, "manifests": [descriptor(self.manifest, MANIFEST)]}
        (folder / "index.json").write_text(json.dumps(index))
        return folder


def descriptor(data: bytes, media_type: str) -> dict[str, object]:
    return {"mediaType": media_type, "digest": digest_of(data), "size": len(data)}


def image(greeting: str = "hello") -> Image:
    """Return an image with one file."""
    tarred = io.BytesIO()
    with tarfile.open(fileobj=tarred, mode="w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("greeting")
        member.size = len(greeting)
        archive.addfile(member, io.BytesIO(greeting.encode()))
    plain = tarred.getvalue()
    layer = gzip.compress(plain, mtime=0)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": ["/greeting"]},
        "rootfs": {"type": "layers", "diff_ids": [digest_of(plain)]},
    }
    written = json.dumps(config).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": descriptor(written, "application/vnd.oci.image.config.v1+json"),
        "layers": [descriptor(layer, "application/vnd.oci.image.layer.v1.tar+gzip")],
    }
    # Odd spaces on purpose: whoever writes it anew changes its digest.
    return Image(layer, written, json.dumps(manifest, indent=3).encode())
