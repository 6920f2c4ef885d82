"""The calls of the distribution spec, with their statuses, headers and codes."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.integration.registry.conftest import (
    Served,
    push_blob,
    push_image,
    push_manifest,
    serving,
)
from tests.integration.registry.image import INDEX, MANIFEST, descriptor, digest_of, image

SHOP = "acme/shop"
DOCKER = "application/vnd.docker.distribution.manifest.v2+json"


@pytest.fixture
async def shop(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with served.client("shop") as client:
        yield client


def code(answer: httpx.Response) -> str:
    return str(answer.json()["errors"][0]["code"])


async def parts(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


# Blobs.


async def test_a_blob_comes_back_whole_and_in_ranges(shop: httpx.AsyncClient) -> None:
    data = bytes(range(256)) * 9000
    pushed = await push_blob(shop, SHOP, data)
    assert pushed.headers["docker-content-digest"] == digest_of(data)
    url = pushed.headers["location"]

    head = await shop.head(url)
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(data)))
    whole = await shop.get(url)
    assert whole.content == data
    assert whole.headers["etag"] == f'"{digest_of(data)}"'

    middle = await shop.get(url, headers={"Range": "bytes=1000-2000999"})
    assert (middle.status_code, middle.content) == (206, data[1000:2001000])
    rest = await shop.get(url, headers={"Range": "bytes=100-", "If-Range": whole.headers["etag"]})
    assert (rest.status_code, rest.content) == (206, data[100:])
    beyond = await shop.get(url, headers={"Range": f"bytes={len(data)}-"})
    assert beyond.status_code == 416


async def test_parts_with_and_without_a_range_make_one_blob(shop: httpx.AsyncClient) -> None:
    url = (await shop.post(f"/v2/{SHOP}/blobs/uploads/")).headers["location"]
    first = await shop.patch(url, content=b"one ", headers={"Content-Range": "0-3"})
    assert (first.status_code, first.headers["range"]) == (202, "0-3")
    chunked = await shop.patch(url, content=parts(b"two", b" "))
    assert (chunked.status_code, chunked.headers["range"]) == (202, "0-7")
    done = await shop.put(
        url,
        params={"digest": digest_of(b"one two three")},
        content=b"three",
        headers={"Content-Range": "8-12"},
    )
    assert done.status_code == 201
    assert (await shop.get(done.headers["location"])).content == b"one two three"
    assert (await shop.get(url)).status_code == 404, "the upload ended"


@pytest.mark.parametrize("said", ["2-5", "9-12"])
@pytest.mark.parametrize("method", ["PATCH", "PUT"])
async def test_a_part_out_of_order_is_refused_with_where_to_go_on(
    shop: httpx.AsyncClient, said: str, method: str
) -> None:
    url = (await shop.post(f"/v2/{SHOP}/blobs/uploads/")).headers["location"]
    await shop.patch(url, content=b"0123")
    answer = await shop.request(
        method,
        url,
        params={"digest": digest_of(b"01234567")},
        content=b"4567",
        headers={"Content-Range": said},
    )
    assert (answer.status_code, code(answer)) == (416, "BLOB_UPLOAD_INVALID")
    assert (answer.headers["range"], answer.headers["location"]) == ("0-3", url)


async def test_a_push_that_was_cut_goes_on_where_it_ended(
    served: Served, shop: httpx.AsyncClient
) -> None:
    data = bytes(3_000_000)
    url = (await shop.post(f"/v2/{SHOP}/blobs/uploads/")).headers["location"]
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(
        f"PATCH {url} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer shop\r\n"
        f"Content-Length: {len(data)}\r\n\r\n".encode()
        + data[:1_500_000]
    )
    await writer.drain()
    writer.close()
    await reader.read()

    async def arrived() -> int:
        told = await shop.get(url)
        assert told.status_code == 204
        return int(told.headers["range"].rpartition("-")[2]) + 1

    # The registry sees the cut on its own time; each question gives it a turn.
    offset = 0
    while offset < 1_500_000:
        offset = await arrived()
    await shop.patch(
        url, content=data[offset:], headers={"Content-Range": f"{offset}-{len(data) - 1}"}
    )
    done = await shop.put(url, params={"digest": digest_of(data)})
    assert done.status_code == 201


async def test_an_upload_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path, tmp_path / "data") as before, before.client("shop") as client:
        url = (await client.post(f"/v2/{SHOP}/blobs/uploads/")).headers["location"]
        await client.patch(url, content=b"before ")
    async with serving(tmp_path, tmp_path / "data") as after, after.client("shop") as client:
        assert (await client.get(url)).headers["range"] == "0-6"
        digest = digest_of(b"before after")
        assert (
            await client.put(url, params={"digest": digest}, content=b"after")
        ).status_code == 201


async def test_content_with_another_digest_is_refused_and_gone(
    served: Served, shop: httpx.AsyncClient
) -> None:
    answer = await shop.post(
        f"/v2/{SHOP}/blobs/uploads/", params={"digest": digest_of(b"whole")}, content=b"who"
    )
    assert (answer.status_code, code(answer)) == (400, "DIGEST_INVALID")
    assert (await shop.head(f"/v2/{SHOP}/blobs/{digest_of(b'whole')}")).status_code == 404
    assert list((served.data / "uploads").iterdir()) == []


@pytest.mark.parametrize("digest", ["sha256:abc", "", "md5:" + "0" * 32, "sha256:" + "A" * 64])
async def test_a_digest_that_is_none_begins_nothing(
    served: Served, shop: httpx.AsyncClient, digest: str
) -> None:
    answer = await shop.post(f"/v2/{SHOP}/blobs/uploads/", params={"digest": digest}, content=b"x")
    assert (answer.status_code, code(answer)) == (400, "DIGEST_INVALID")
    assert list((served.data / "uploads").iterdir()) == []


async def test_an_upload_can_be_given_up(served: Served, shop: httpx.AsyncClient) -> None:
    url = (await shop.post(f"/v2/{SHOP}/blobs/uploads/")).headers["location"]
    assert (await shop.delete(url)).status_code == 204
    gone = await shop.patch(url, content=b"x")
    assert (gone.status_code, code(gone)) == (404, "BLOB_UPLOAD_UNKNOWN")


@pytest.mark.parametrize("path", ["..%2f..%2frouter.db", "u_x", "u_" + "0" * 24, "%00"])
async def test_an_invented_upload_is_not_found(shop: httpx.AsyncClient, path: str) -> None:
    answer = await shop.get(f"/v2/{SHOP}/blobs/uploads/{path}")
    assert answer.status_code in {404, 405}


async def test_twenty_pushes_of_one_blob_at_once_all_succeed(
    served: Served, shop: httpx.AsyncClient
) -> None:
    data = bytes(2_000_000)
    answers = await asyncio.gather(*(push_blob(shop, SHOP, data) for _ in range(20)))
    assert {answer.status_code for answer in answers} == {201}
    assert (await shop.get(f"/v2/{SHOP}/blobs/{digest_of(data)}")).content == data
    assert list((served.data / "uploads").iterdir()) == []


async def test_a_full_disk_is_told_and_leaves_no_half_of_a_blob(
    tmp_path: Path, tiny_disk: Path
) -> None:
    data = bytes(6_000_000)
    async with serving(tmp_path, tiny_disk) as served, served.client("shop") as client:
        url = (await client.post(f"/v2/{SHOP}/blobs/uploads/")).headers["location"]
        answer = await client.patch(url, content=data)
        assert answer.status_code == 507
        assert "No space left" in answer.json()["errors"][0]["message"]
        assert (await client.head(f"/v2/{SHOP}/blobs/{digest_of(data)}")).status_code == 404
        assert not any(file.is_file() for file in (tiny_disk / "blobs").rglob("*"))
        # What was told as arrived is what the disk has, and it can be given up.
        kept = int((await client.get(url)).headers["range"].rpartition("-")[2]) + 1
        [staged] = (tiny_disk / "uploads").iterdir()
        assert staged.stat().st_size == kept
        await client.delete(url)
        assert (await push_blob(client, SHOP, b"fits")).status_code == 201


# Manifests.


async def test_a_manifest_keeps_its_bytes_and_its_type(shop: httpx.AsyncClient) -> None:
    mine = image()
    await push_image(shop, SHOP, mine, to="latest")
    for wanted in ("latest", mine.digest):
        answer = await shop.get(f"/v2/{SHOP}/manifests/{wanted}")
        assert answer.content == mine.manifest
        assert answer.headers["content-type"] == MANIFEST
        assert answer.headers["docker-content-digest"] == mine.digest
        head = await shop.head(f"/v2/{SHOP}/manifests/{wanted}")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(mine.manifest))


async def test_docker_schema_2_is_taken_as_it_is(shop: httpx.AsyncClient) -> None:
    mine = image()
    await push_image(shop, SHOP, mine)
    body = json.dumps({**json.loads(mine.manifest), "mediaType": DOCKER}).encode()
    assert (await push_manifest(shop, SHOP, body, to="d", kind=DOCKER)).status_code == 201
    assert (await shop.get(f"/v2/{SHOP}/manifests/d")).headers["content-type"] == DOCKER


async def test_an_index_needs_its_manifests(shop: httpx.AsyncClient) -> None:
    mine = image()
    listed = {"schemaVersion": 2, "manifests": [descriptor(mine.manifest, MANIFEST)]}
    body = json.dumps(listed).encode()
    early = await push_manifest(shop, SHOP, body, to="all", kind=INDEX)
    assert (early.status_code, code(early)) == (400, "MANIFEST_BLOB_UNKNOWN")
    await push_image(shop, SHOP, mine)
    assert (await push_manifest(shop, SHOP, body, to="all", kind=INDEX)).status_code == 201


async def test_a_manifest_with_a_missing_blob_is_refused(shop: httpx.AsyncClient) -> None:
    mine = image()
    await push_blob(shop, SHOP, mine.config)
    answer = await push_manifest(shop, SHOP, mine.manifest, to="latest")
    assert (answer.status_code, code(answer)) == (400, "MANIFEST_BLOB_UNKNOWN")
    assert digest_of(mine.layer) in answer.json()["errors"][0]["message"]
    assert (await shop.get(f"/v2/{SHOP}/tags/list")).json()["tags"] == []


async def test_a_manifest_under_another_digest_is_refused(shop: httpx.AsyncClient) -> None:
    await push_image(shop, SHOP, image())
    answer = await push_manifest(shop, SHOP, image().manifest, to=digest_of(b"other"))
    assert (answer.status_code, code(answer)) == (400, "DIGEST_INVALID")


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"not json", MANIFEST),
        (b"[]", MANIFEST),
        (b'{"schemaVersion": 1}', MANIFEST),
        (b'{"schemaVersion": 2}', MANIFEST),
        (b'{"schemaVersion": 2, "config": {}, "layers": []}', MANIFEST),
        (b'{"schemaVersion": 2, "manifests": [{"digest": 1}]}', INDEX),
        (image().manifest, "text/html"),
        (image().manifest, DOCKER),
        (b"[" * 100_000, MANIFEST),
    ],
)
async def test_what_is_no_manifest_is_refused(
    shop: httpx.AsyncClient, body: bytes, kind: str
) -> None:
    await push_image(shop, SHOP, image())
    answer = await push_manifest(shop, SHOP, body, to="latest", kind=kind)
    assert (answer.status_code, code(answer)) == (400, "MANIFEST_INVALID")


async def test_a_manifest_over_four_mebibytes_is_refused(shop: httpx.AsyncClient) -> None:
    answer = await push_manifest(shop, SHOP, bytes(4 * 1024 * 1024 + 1), to="latest")
    assert (answer.status_code, code(answer)) == (413, "SIZE_INVALID")


async def test_unknown_things_have_their_own_codes(shop: httpx.AsyncClient) -> None:
    nothing = digest_of(b"nothing")
    for path, expected in {
        f"/v2/{SHOP}/manifests/none": "MANIFEST_UNKNOWN",
        f"/v2/{SHOP}/manifests/{nothing}": "MANIFEST_UNKNOWN",
        f"/v2/{SHOP}/blobs/{nothing}": "BLOB_UNKNOWN",
        "/v2/Not/A/Name/tags/list": "NAME_UNKNOWN",
    }.items():
        answer = await shop.get(path)
        assert (answer.status_code, code(answer)) == (404, expected), path
    answer = await shop.delete(f"/v2/{SHOP}/blobs/{nothing}")
    assert (answer.status_code, code(answer)) == (405, "UNSUPPORTED")


async def test_tags_come_sorted_and_by_pages(shop: httpx.AsyncClient) -> None:
    for tag in ("b", "a", "c"):
        await push_image(shop, SHOP, image(), to=tag)
    first = await shop.get(f"/v2/{SHOP}/tags/list", params={"n": "2"})
    assert first.json() == {"name": SHOP, "tags": ["a", "b"]}
    following = first.headers["link"].partition("<")[2].partition(">")[0]
    assert (await shop.get(following)).json()["tags"] == ["c"]
    assert (await shop.get(f"/v2/{SHOP}/tags/list", params={"n": "0"})).json()["tags"] == []


async def test_a_deleted_tag_leaves_the_manifest(shop: httpx.AsyncClient) -> None:
    mine = image()
    await push_image(shop, SHOP, mine, to="old")
    assert (await shop.delete(f"/v2/{SHOP}/manifests/old")).status_code == 202
    assert (await shop.get(f"/v2/{SHOP}/manifests/old")).status_code == 404
    assert (await shop.get(f"/v2/{SHOP}/manifests/{mine.digest}")).status_code == 200
    assert (await shop.delete(f"/v2/{SHOP}/manifests/{mine.digest}")).status_code == 202
    assert (await shop.get(f"/v2/{SHOP}/manifests/{mine.digest}")).status_code == 404
