"""Reading a manifest: it comes from whoever may push, and takes as long as it is long."""

import pytest

from pierhead.router.domain.manifest import MANIFEST_BYTES_MAX, ManifestInvalid, read_manifest


def test_of_very_many_names_the_one_that_is_there_twice_is_found() -> None:
    names = ",".join(f'"{number:06d}":0' for number in range(MANIFEST_BYTES_MAX // 11 - 2))
    body = f'{{{names},"x":0,"x":0}}'.encode()

    assert MANIFEST_BYTES_MAX - 40 < len(body) <= MANIFEST_BYTES_MAX
    with pytest.raises(ManifestInvalid, match="'x' twice"):
        read_manifest(body, "")


@pytest.mark.parametrize(
    "body",
    [
        b"[" * MANIFEST_BYTES_MAX,
        b'{"a":' * (MANIFEST_BYTES_MAX // 5),
        b'{"schemaVersion":' + b"2" * (MANIFEST_BYTES_MAX - 18) + b"}",
    ],
)
def test_what_no_reader_would_end_with_is_no_manifest(body: bytes) -> None:
    with pytest.raises(ManifestInvalid, match="not JSON"):
        read_manifest(body, "")
