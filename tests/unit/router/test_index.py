"""The bytes of an index: written down here, so that they never change."""

from pierhead.router.domain.index import Part, index_of
from pierhead.router.domain.manifest import OCI_INDEX, read_manifest

KIND = "application/vnd.oci.image.manifest.v1+json"
AMD = Part(platform="linux/amd64", media_type=KIND, digest="sha256:" + "a" * 64, size_bytes=405)
ARM = Part(platform="linux/arm/v7", media_type=KIND, digest="sha256:" + "b" * 64, size_bytes=7)


def test_an_index_is_the_same_bytes_for_the_same_images() -> None:
    said = (
        b'{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":['
        b'{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:'
        + b"a"
        * 64
        + b'","size":405,"platform":{"architecture":"amd64","os":"linux"}},'
        b'{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:'
        + b"b" * 64
        + b'","size":7,"platform":{"architecture":"arm","os":"linux","variant":"v7"}}]}'
    )

    assert index_of([AMD, ARM]) == said
    assert index_of([ARM, AMD]) != said


def test_an_index_of_ours_passes_what_every_manifest_has_to() -> None:
    reading = read_manifest(index_of([AMD, ARM]), OCI_INDEX)

    assert (reading.kind, reading.blobs) == (OCI_INDEX, ())
    assert reading.needed == (AMD.digest, ARM.digest)
