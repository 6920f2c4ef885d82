"""Writes a built image into one file: an OCI layout, an archive for `docker load`, or its files.

Everything comes from the registry by content and is checked before it is written. An archive is
both in one: a layout for whoever reads those, and the `manifest.json` that docker looks for.
"""

import json
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import IO, Any, Final

from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.digest import RunningDigest, digest_of, same_digest
from pierhead.protocol.errors import IntegrityError
from pierhead.protocol.problem import problem
from pierhead.router.cli.flatten import flatten, open_layer
from pierhead.router.cli.unwritten import naming

_OCI_LAYOUT: Final = b'{"imageLayoutVersion":"1.0.0"}'
_OCI_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image in the registry: where it is, and its manifest."""

    repository: str
    digest: str
    manifest: bytes

    @property
    def parts(self) -> list[dict[str, Any]]:
        """The descriptors of the configuration and of all layers, lowest first."""
        document = json.loads(self.manifest)
        return [document["config"], *document["layers"]]

    @property
    def descriptor(self) -> dict[str, object]:
        """What an index says of it."""
        kind = json.loads(self.manifest).get("mediaType", _OCI_MANIFEST)
        return {"mediaType": kind, "digest": self.digest, "size": len(self.manifest)}


async def find_image(client: RouterClient, reference: str) -> Image:
    """Return the image that a build's reference names.

    Raises:
        IntegrityError: the registry gave other bytes than were asked for.
    """
    repository, _, digest = reference.partition("/")[2].partition("@")
    manifest = await client.manifest(repository, digest)
    _check(digest_of(manifest), digest)
    return Image(repository=repository, digest=digest, manifest=manifest)


async def write_archive(
    client: RouterClient,
    image: Image,
    output: IO[bytes],
    *,
    names: Sequence[str],
    for_docker: bool,
    progress: Callable[[int], None],
) -> None:
    """Write the image as a tar; `names` are what it is called after loading it."""
    with tarfile.open(fileobj=output, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        done = 0
        for part in image.parts:
            async with _fetched(client, image, part) as blob:
                _add(archive, _blob_path(part["digest"]), blob, part["size"])
            done += part["size"]
            progress(done)
        _add_document(archive, _blob_path(image.digest), image.manifest)
        _add_document(archive, "oci-layout", _OCI_LAYOUT)
        _add_document(archive, "index.json", _json(_index(image, names)))
        if for_docker:
            _add_document(archive, "manifest.json", _json([_docker_entry(image, names)]))


async def write_files(
    client: RouterClient, image: Image, output: IO[bytes], *, progress: Callable[[int], None]
) -> None:
    """Write the files that a container of the image would see, as one tar."""
    layers: list[IO[bytes]] = []
    done = 0
    try:
        for part in image.parts[1:]:
            async with _fetched(client, image, part) as blob:
                layers.append(open_layer(blob))
            done += part["size"]
            progress(done)
        flatten(layers, output)
    finally:
        for layer in layers:
            layer.close()


@asynccontextmanager
async def _fetched(
    client: RouterClient, image: Image, part: dict[str, Any]
) -> AsyncIterator[IO[bytes]]:
    """Yield a checked blob in a file that is gone afterwards."""
    with tempfile.TemporaryFile() as file:
        seen = RunningDigest()
        async for data in client.blob(image.repository, part["digest"]):
            seen.update(data)
            if seen.size_bytes > part["size"]:
                break
            with naming(tempfile.gettempdir()):
                file.write(data)
        _check(seen.digest(), part["digest"])
        with naming(tempfile.gettempdir()):
            file.seek(0)  # which writes what is left
        yield file


def _check(found: str, wanted: str) -> None:
    if not same_digest(found, wanted):
        detail = f"the registry gave other bytes than {wanted}"
        raise IntegrityError(problem("digest-mismatch", detail))


def _index(image: Image, names: Sequence[str]) -> dict[str, object]:
    # Both are read: containerd and docker take the whole name, tools on layouts the short one.
    named = [
        {
            **image.descriptor,
            "annotations": {
                "io.containerd.image.name": f"docker.io/library/{name}",
                "org.opencontainers.image.ref.name": name.rpartition(":")[2],
            },
        }
        for name in names
    ]
    return {"schemaVersion": 2, "manifests": named or [image.descriptor]}


def _docker_entry(image: Image, names: Sequence[str]) -> dict[str, object]:
    config, *layers = (_blob_path(part["digest"]) for part in image.parts)
    return {"Config": config, "RepoTags": list(names) or None, "Layers": layers}


def _blob_path(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/", 1)


def _json(document: object) -> bytes:
    return json.dumps(document).encode()


def _add_document(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    _add(archive, name, BytesIO(content), len(content))


def _add(archive: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    archive.addfile(member, content)
