"""An image is what its own documents say, and documents that are none are refused."""

import json
from typing import Any

import pytest

from pierhead.protocol.digest import digest_of
from pierhead.protocol.image import read_image
from pierhead.protocol.result import Healthcheck

LAYERS = [{"digest": f"sha256:{number:064x}", "size": 10 + number} for number in (1, 2)]


def documents(config: dict[str, Any], **platform: str) -> tuple[bytes, bytes]:
    inner = json.dumps({"os": "linux", "architecture": "amd64", **platform, "config": config})
    outer = {"schemaVersion": 2, "config": {"digest": digest_of(inner.encode())}, "layers": LAYERS}
    return json.dumps(outer).encode(), inner.encode()


def test_digests_and_sizes_are_those_of_the_bytes() -> None:
    manifest, config = documents({})

    image = read_image(manifest, config)

    assert image.manifest == manifest
    assert image.platform.manifest_digest == digest_of(manifest)
    assert image.platform.config_digest == digest_of(config)
    assert image.platform.size_bytes == 23
    assert image.platform.layers == tuple(layer["digest"] for layer in LAYERS)


def test_a_platform_has_one_spelling() -> None:
    assert read_image(*documents({}, architecture="arm64", variant="v8")).platform.platform == (
        "linux/arm64"
    )


def test_no_entrypoint_is_not_the_same_as_an_empty_one() -> None:
    assert read_image(*documents({"Cmd": None})).config.entrypoint is None
    assert read_image(*documents({"Entrypoint": []})).config.entrypoint == ()


def test_what_docker_added_to_the_configuration_is_read_as_well() -> None:
    check = {"Test": ["CMD", "/ok"], "Interval": 5_000_000_000, "Retries": 3}
    built = read_image(
        *documents({"Healthcheck": check, "OnBuild": ["RUN x"], "Shell": ["/bin/ash", "-c"]})
    )

    assert built.config.healthcheck == Healthcheck(
        test=("CMD", "/ok"), interval_ns=5_000_000_000, retries=3
    )
    assert (built.config.on_build, built.config.shell) == (("RUN x",), ("/bin/ash", "-c"))


def test_when_and_by_whom_it_was_made_and_its_unpacked_layers_come_from_the_document() -> None:
    manifest, config = documents({})
    made = {"created": "2026-01-02T03:04:05Z", "author": "me", "rootfs": {"diff_ids": ["sha256:x"]}}
    inner = json.dumps({**json.loads(config), **made}).encode()

    image = read_image(manifest, inner).platform

    assert (image.created, image.author) == ("2026-01-02T03:04:05Z", "me")
    assert image.diff_ids == ("sha256:x",)


def test_sets_come_in_a_fixed_order() -> None:
    config = read_image(
        *documents({"ExposedPorts": {"80/tcp": {}, "53/udp": {}}, "Volumes": {"/b": {}, "/a": {}}})
    ).config

    assert config.exposed_ports == ("53/udp", "80/tcp")
    assert config.volumes == ("/a", "/b")


@pytest.mark.parametrize(
    ("manifest", "config"),
    [
        (b"", b"{}"),
        (b"[]", b"{}"),
        (b"{}", b"{}"),
        (b'{"layers": [], "config": {"digest": "x"}}', b'{"os": "linux"}'),
        (b'{"layers": [1], "config": {"digest": "x"}}', b'{"os": "l", "architecture": "a"}'),
        (b"\xff", b"{}"),
    ],
)
def test_what_is_no_image_is_refused_in_one_way(manifest: bytes, config: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_image(manifest, config)
