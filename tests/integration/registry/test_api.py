"""The calls of the distribution spec, with their statuses, headers and codes."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from pierhead.router.services import registry
from pierhead.server.share import Share
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


def with_part(digest: str) -> bytes:
    """Return a manifest whose configuration is by this digest."""
    return json.dumps({**json.loads(image().manifest), "config": {"digest": digest}}).encode()


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
        # Whether a write failed or was not begun depends on the sizes in which the bytes came.
        [error] = answer.json()["errors"]
        assert error["message"].startswith("could not store it: ")
        assert error["detail"]["hint"] == "free some space on the control plane's disk"
        assert (await client.head(f"/v2/{SHOP}/blobs/{digest_of(data)}")).status_code == 404
        assert not any(file.is_file() for file in (tiny_disk / "blobs").rglob("*"))
        # What is missing comes back at once, not when the upload would have been swept.
        assert list((tiny_disk / "uploads").iterdir()) == []
        gone = await client.get(url)
        assert (gone.status_code, code(gone)) == (404, "BLOB_UPLOAD_UNKNOWN")
        assert (await push_blob(client, SHOP, b"fits")).status_code == 201


async def test_a_project_has_so_many_uploads_under_way_and_hears_when_to_come_again(
    tmp_path: Path,
) -> None:
    async with (
        serving(tmp_path, tmp_path / "data", Share(uploads=2)) as served,
        served.client("shop") as shop,
        served.client("blog") as blog,
    ):
        uploads = f"/v2/{SHOP}/blobs/uploads/"
        begun = [await shop.post(uploads) for _ in range(2)]
        assert [answer.status_code for answer in begun] == [202, 202]
        refused = await shop.post(uploads)
        assert (refused.status_code, code(refused)) == (429, "TOOMANYREQUESTS")
        assert refused.headers["retry-after"] == "10"
        [error] = refused.json()["errors"]
        assert error["message"] == "2 uploads of this repository are under way"
        hint = "end some of them, or give them up; then push again"
        assert error["detail"] == {"retry_after_ms": 10_000, "hint": hint}
        whole = await push_blob(shop, SHOP, b"whole")
        assert (whole.status_code, code(whole)) == (429, "TOOMANYREQUESTS")
        assert (await blog.post("/v2/acme/blog/blobs/uploads/")).status_code == 202
        await shop.delete(begun[0].headers["location"])
        assert (await push_blob(shop, SHOP, b"whole")).status_code == 201


async def test_whoever_is_cut_before_he_hears_of_his_upload_leaves_nothing(
    served: Served, shop: httpx.AsyncClient
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    target = f"/v2/{SHOP}/blobs/uploads/?digest={digest_of(bytes(3_000_000))}"
    writer.write(
        f"POST {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer shop\r\n"
        f"Content-Length: 3000000\r\n\r\n".encode()
        + bytes(1_500_000)
    )
    await writer.drain()
    uploads = served.data / "uploads"
    while not any(file.stat().st_size for file in uploads.iterdir()):
        await shop.get("/v2/")
    writer.close()
    await reader.read()
    async with asyncio.timeout(60):
        while any(uploads.iterdir()):
            await shop.get("/v2/")
    assert (await push_blob(shop, SHOP, bytes(3_000_000))).status_code == 201


async def test_an_upload_that_is_too_large_leaves_nothing(
    served: Served, shop: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "BLOB_BYTES_MAX", 1000)
    url = (await shop.post(f"/v2/{SHOP}/blobs/uploads/")).headers["location"]
    assert (await shop.patch(url, content=bytes(900))).status_code == 202
    answer = await shop.patch(url, content=bytes(101))
    assert (answer.status_code, code(answer)) == (413, "SIZE_INVALID")
    assert list((served.data / "uploads").iterdir()) == []


@pytest.mark.parametrize("said", ["9-3", "0-", "-5", "bytes 0-3/4", "0-1e3", "0-99999999999999999"])
async def test_a_content_range_that_is_none_is_refused(shop: httpx.AsyncClient, said: str) -> None:
    url = (await shop.post(f"/v2/{SHOP}/blobs/uploads/")).headers["location"]
    answer = await shop.patch(url, content=b"0123", headers={"Content-Range": said})
    assert answer.status_code == 400
    assert (await shop.get(url)).headers["upload-offset"] == "0"


@pytest.mark.parametrize(("said", "kept"), [("0-9", 0), ("0-2", 0)])
async def test_a_content_range_that_the_length_contradicts_stores_nothing(
    shop: httpx.AsyncClient, said: str, kept: int
) -> None:
    url = (await shop.post(f"/v2/{SHOP}/blobs/uploads/")).headers["location"]
    answer = await shop.patch(url, content=b"0123", headers={"Content-Range": said})
    assert (answer.status_code, code(answer)) == (400, "SIZE_INVALID")
    assert (await shop.get(url)).headers["upload-offset"] == str(kept)


@pytest.mark.parametrize(("said", "kept"), [("0-9", 4), ("0-2", 3)])
async def test_a_stream_that_is_not_as_long_as_it_said_keeps_what_was_said(
    shop: httpx.AsyncClient, said: str, kept: int
) -> None:
    url = (await shop.post(f"/v2/{SHOP}/blobs/uploads/")).headers["location"]
    answer = await shop.patch(url, content=parts(b"01", b"23"), headers={"Content-Range": said})
    assert (answer.status_code, code(answer)) == (400, "SIZE_INVALID")
    assert (await shop.get(url)).headers["upload-offset"] == str(kept)
    whole = b"0123456"
    await shop.put(url, params={"digest": digest_of(whole)}, content=whole[kept:])
    assert (await shop.get(f"/v2/{SHOP}/blobs/{digest_of(whole)}")).content == whole


async def test_a_part_that_comes_again_is_refused_and_changes_nothing(
    shop: httpx.AsyncClient,
) -> None:
    url = (await shop.post(f"/v2/{SHOP}/blobs/uploads/")).headers["location"]
    part = {"content": b"0123", "headers": {"Content-Range": "0-3"}}
    assert (await shop.patch(url, **part)).status_code == 202  # type: ignore[arg-type]
    again = await shop.patch(url, **part)  # type: ignore[arg-type]
    assert (again.status_code, again.headers["range"]) == (416, "0-3")
    assert (await shop.put(url, params={"digest": digest_of(b"0123")})).status_code == 201


async def test_a_single_part_over_sixteen_mebibytes_is_taken(shop: httpx.AsyncClient) -> None:
    data = bytes(20 * 1024 * 1024)
    assert (await push_blob(shop, SHOP, data)).status_code == 201


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
        (b'{"schemaVersion": 2, "config": {"digest": "sha256:\\ud800"}, "layers": []}', MANIFEST),
        (with_part("md5:" + "0" * 32), MANIFEST),
        (with_part("sha512:" + "0" * 128), MANIFEST),
        (with_part("sha256:" + "\ud800" * 64), MANIFEST),
        (json.dumps({"schemaVersion": 2, "manifests": [{}] * 1025}).encode(), INDEX),
        (b'{"schemaVersion": 2, "mediaType": "\\ud800"}', "text/html"),
    ],
)
async def test_what_is_no_manifest_is_refused(
    shop: httpx.AsyncClient, body: bytes, kind: str
) -> None:
    await push_image(shop, SHOP, image())
    answer = await push_manifest(shop, SHOP, body, to="latest", kind=kind)
    assert (answer.status_code, code(answer)) == (400, "MANIFEST_INVALID")


def changed(part: str, /, **values: object) -> bytes:
    """Return the manifest of an image whose descriptor of a part says something else."""
    found = json.loads(image().manifest)
    of = found["config"] if part == "config" else found["layers"][0]
    of |= values
    return json.dumps({**found, "layers": [{**layer} for layer in found["layers"]]}).encode()


def with_long_s() -> bytes:
    """Return a manifest with a name that readers in Go take for `size`."""
    return image().manifest.replace(b'"size"', b'"\\u017fize"', 1)


@pytest.mark.parametrize(
    ("body", "expected", "said"),
    [
        (changed("layer", size=1), "SIZE_INVALID", "layer 1"),
        (changed("config", size=2**62), "SIZE_INVALID", "the configuration"),
        (changed("layer", size=0), "SIZE_INVALID", "layer 1"),
        (changed("layer", size=-1), "MANIFEST_INVALID", "layer 1"),
        (changed("layer", size=2**63), "MANIFEST_INVALID", "layer 1"),
        (changed("layer", size=len(image().layer) + 0.0), "MANIFEST_INVALID", "layer 1"),
        (changed("layer", size=str(len(image().layer))), "MANIFEST_INVALID", "layer 1"),
        (changed("config", size=True), "MANIFEST_INVALID", "the configuration"),
        (changed("config", size=None), "MANIFEST_INVALID", "the configuration"),
        (changed("config", mediaType=None), "MANIFEST_INVALID", "the configuration"),
        (changed("layer", mediaType="layer"), "MANIFEST_INVALID", "layer 1"),
        (changed("layer", mediaType="a/b\n"), "MANIFEST_INVALID", "layer 1"),
        (changed("layer", Size=1), "MANIFEST_INVALID", "'Size'"),
        (with_long_s(), "MANIFEST_INVALID", "'size' is meant"),
        (changed("config", data="e30="), "MANIFEST_INVALID", "the configuration"),
        (changed("config", data="{}"), "MANIFEST_INVALID", "base64"),
        (image().manifest.replace(b'"size"', b'"size": 1, "size"', 1), "MANIFEST_INVALID", "twice"),
        (image().manifest[:-1] + b', "layers": []}', "MANIFEST_INVALID", "'layers' twice"),
        (image().manifest[:-1] + b', "Config": {}}', "MANIFEST_INVALID", "'Config'"),
        (image().manifest[:-1] + b', "x": NaN}', "MANIFEST_INVALID", "not JSON"),
        (image().manifest.decode().encode("utf-16"), "MANIFEST_INVALID", "not JSON in UTF-8"),
        (b"\xef\xbb\xbf" + image().manifest, "MANIFEST_INVALID", "not JSON in UTF-8"),
    ],
)
async def test_a_manifest_that_says_what_is_not_true_of_its_parts_is_refused(
    shop: httpx.AsyncClient, body: bytes, expected: str, said: str
) -> None:
    await push_image(shop, SHOP, image())
    answer = await push_manifest(shop, SHOP, body, to="latest")
    assert (answer.status_code, code(answer)) == (400, expected)
    assert said in answer.json()["errors"][0]["message"]
    assert answer.json()["errors"][0]["detail"]["hint"]
    assert (await shop.get(f"/v2/{SHOP}/tags/list")).json()["tags"] == []


@pytest.mark.parametrize("place", ["child", "subject"])
@pytest.mark.parametrize(
    ("lie", "expected"),
    [
        ({"size": 3}, "SIZE_INVALID"),
        ({"mediaType": DOCKER}, "MANIFEST_INVALID"),
        ({"mediaType": None}, "MANIFEST_INVALID"),
    ],
)
async def test_another_manifest_is_spoken_of_as_it_is(
    shop: httpx.AsyncClient, place: str, lie: dict[str, object], expected: str
) -> None:
    await push_image(shop, SHOP, image())
    await push_blob(shop, SHOP, b"{}")
    about = {**descriptor(image().manifest, MANIFEST), **lie}
    if place == "child":
        body, kind = json.dumps({"schemaVersion": 2, "manifests": [about]}).encode(), INDEX
    else:
        body, kind = attached(image().manifest, "a/b", subject=about), MANIFEST
    answer = await push_manifest(shop, SHOP, body, to="latest", kind=kind)
    assert (answer.status_code, code(answer)) == (400, expected)


async def test_content_beside_its_digest_is_taken_when_it_is_that(shop: httpx.AsyncClient) -> None:
    await push_image(shop, SHOP, image())
    data = base64.b64encode(image().config).decode()
    body = changed("config", data=data)
    assert (await push_manifest(shop, SHOP, body, to="latest")).status_code == 201


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
    answer = await shop.delete(f"/v2/{SHOP}/tags/list")
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


async def test_a_blob_is_deleted_when_no_manifest_needs_it(shop: httpx.AsyncClient) -> None:
    mine = image()
    await push_image(shop, SHOP, mine, to="latest")
    layer = f"/v2/{SHOP}/blobs/{digest_of(mine.layer)}"
    needed = await shop.delete(layer)
    assert (needed.status_code, code(needed)) == (403, "DENIED")
    assert needed.json()["errors"][0]["detail"] == {"hint": "delete the manifests first"}
    assert (await shop.head(layer)).status_code == 200

    await shop.delete(f"/v2/{SHOP}/manifests/{mine.digest}")
    assert (await shop.get(f"/v2/{SHOP}/tags/list")).json()["tags"] == []
    assert (await shop.delete(layer)).status_code == 202
    assert (await shop.head(layer)).status_code == 404
    again = await shop.delete(layer)
    assert (again.status_code, code(again)) == (404, "BLOB_UNKNOWN")


async def test_a_manifest_that_an_index_needs_goes_after_the_index(shop: httpx.AsyncClient) -> None:
    mine = image()
    await push_image(shop, SHOP, mine)
    body = json.dumps({"schemaVersion": 2, "manifests": [descriptor(mine.manifest, MANIFEST)]})
    await push_manifest(shop, SHOP, body.encode(), to="all", kind=INDEX)
    child, parent = (f"/v2/{SHOP}/manifests/{it}" for it in (mine.digest, digest_of(body.encode())))
    assert (await shop.delete(child)).status_code == 403
    assert (await shop.delete(parent)).status_code == 202
    assert (await shop.delete(child)).status_code == 202


def attached(subject: bytes, kind: str, /, **more: object) -> bytes:
    """Return a manifest about another one, as image-spec 1.1 has them."""
    empty = {
        "mediaType": "application/vnd.oci.empty.v1+json",
        "digest": digest_of(b"{}"),
        "size": 2,
    }
    whole = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": kind,
        "config": empty,
        "layers": [empty],
        "subject": descriptor(subject, MANIFEST),
        **more,
    }
    return json.dumps(whole).encode()


async def test_what_is_about_a_manifest_is_listed_with_its_kind(shop: httpx.AsyncClient) -> None:
    mine = image()
    await push_blob(shop, SHOP, b"{}")
    sbom = attached(mine.manifest, "application/spdx+json", annotations={"by": "me"})
    scan = attached(mine.manifest, "application/sarif+json")
    for body in (sbom, scan):  # a subject may come later, or never
        pushed = await push_manifest(shop, SHOP, body, to=digest_of(body))
        assert pushed.headers["oci-subject"] == mine.digest

    listed = await shop.get(f"/v2/{SHOP}/referrers/{mine.digest}")
    assert listed.headers["content-type"] == INDEX
    found = {one["digest"]: one for one in listed.json()["manifests"]}
    assert found == {
        digest_of(sbom): {
            **descriptor(sbom, MANIFEST),
            "artifactType": "application/spdx+json",
            "annotations": {"by": "me"},
        },
        digest_of(scan): {**descriptor(scan, MANIFEST), "artifactType": "application/sarif+json"},
    }
    query = {"artifactType": "application/sarif+json"}
    one = await shop.get(f"/v2/{SHOP}/referrers/{mine.digest}", params=query)
    assert one.headers["oci-filters-applied"] == "artifactType"
    assert [each["digest"] for each in one.json()["manifests"]] == [digest_of(scan)]

    nothing = await shop.get(f"/v2/{SHOP}/referrers/{digest_of(b'nothing')}")
    assert (nothing.status_code, nothing.json()["manifests"]) == (200, [])
    assert (await shop.get(f"/v2/{SHOP}/referrers/latest")).status_code == 400


async def test_many_referrers_come_by_pages(shop: httpx.AsyncClient) -> None:
    await push_blob(shop, SHOP, b"{}")
    large = {"of": "x" * 1_500_000}
    bodies = [attached(b"subject", f"kind/{n}", annotations=large) for n in range(6)]
    bodies += [attached(b"subject", f"kind/{n}") for n in range(40)]
    for body in bodies:
        await push_manifest(shop, SHOP, body, to=digest_of(body))
    found, path = [], f"/v2/{SHOP}/referrers/{digest_of(b'subject')}"
    pages = 0
    while path:
        page = await shop.get(path)
        assert len(page.content) < 2 * 1024 * 1024
        found += [each["digest"] for each in page.json()["manifests"]]
        path = page.headers.get("link", "").partition("<")[2].partition(">")[0]
        pages += 1
    assert pages > 5
    assert found == sorted({digest_of(body) for body in bodies})


async def test_an_older_artifact_manifest_and_the_tag_of_the_fallback_are_taken(
    shop: httpx.AsyncClient,
) -> None:
    kind = "application/vnd.oci.artifact.manifest.v1+json"
    await push_blob(shop, SHOP, b"content")
    body = json.dumps(
        {
            "mediaType": kind,
            "artifactType": "application/example",
            "blobs": [descriptor(b"content", "text/plain")],
            "subject": descriptor(image().manifest, MANIFEST),
        }
    ).encode()
    pushed = await push_manifest(shop, SHOP, body, to=digest_of(body), kind=kind)
    assert pushed.status_code == 201
    listed = await shop.get(f"/v2/{SHOP}/referrers/{image().digest}")
    assert [one["mediaType"] for one in listed.json()["manifests"]] == [kind]

    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [descriptor(body, kind)]}
    fallback = image().digest.replace(":", "-")
    tagged = await push_manifest(shop, SHOP, json.dumps(index).encode(), to=fallback, kind=INDEX)
    assert tagged.status_code == 201
    assert (await shop.get(f"/v2/{SHOP}/manifests/{fallback}")).json() == index


async def test_a_docker_manifest_list_is_taken(shop: httpx.AsyncClient) -> None:
    kind = "application/vnd.docker.distribution.manifest.list.v2+json"
    await push_image(shop, SHOP, image())
    body = json.dumps({"schemaVersion": 2, "manifests": [descriptor(image().manifest, MANIFEST)]})
    pushed = await push_manifest(shop, SHOP, body.encode(), to="many", kind=kind)
    assert pushed.status_code == 201
    assert (await shop.get(f"/v2/{SHOP}/manifests/many")).headers["content-type"] == kind
