"""A whole build in one call: a tar in, JSON lines out."""

import asyncio
import gzip
import io
import json
import os
import tarfile
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
import zstandard

from pierhead.protocol.build import Event, Finished, Log, Queued, Started
from pierhead.protocol.client import tarred
from pierhead.protocol.client.tarred import pack_tar
from pierhead.protocol.errors import Invalid
from pierhead.protocol.lease import Grant
from pierhead.protocol.plan import Plan
from pierhead.protocol.tree import parse_page
from tests.acceptance.stage import eventually
from tests.integration.router.stage import House, push_image, tiny_image
from tests.integration.router.test_contexts import archive_of, unpacked

FILES = {"Dockerfile": b"FROM scratch\n", "src/main": b"main", "large": os.urandom(5 * 2**20)}
LINES = msgspec.json.Decoder(Event)


def tar_of(files: dict[str, bytes], **how: Any) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", **how) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo("./" + name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def entries_of(tar: bytes, dockerfile: str = "Dockerfile") -> list[str]:
    packed = pack_tar(io.BytesIO(tar), dockerfile=dockerfile)
    return [entry.name.decode() for page in packed.pages for entry in parse_page(page)]


async def events_of(response: httpx.Response) -> list[Event]:
    return [LINES.decode(line) async for line in response.aiter_lines() if line]


async def succeed(house: House, grant: Grant) -> None:
    image = tiny_image()
    await push_image(house.http(grant.token), grant.repository, image)
    await house.client(grant.token).report(grant.build_id, grant.fence, image.envelope())


@pytest.mark.parametrize("how", [bytes, gzip.compress, zstandard.compress])
async def test_a_tar_goes_in_and_events_come_out(house: House, how: Any) -> None:
    runner = await house.runner()
    http = house.http(await house.project_token("web"))
    query = {"t": ["web:1.2", "web"], "target": "final", "buildargs": '{"V":"7"}', "nocache": "1"}
    body = how(tar_of(FILES))
    async with http.stream("POST", "/api/builds:run", params=query, content=body) as response:
        assert response.status_code == 200
        (grant,) = (await runner.acquire(hold_ms=5000)).grants
        await succeed(house, grant)
        events = await events_of(response)

    assert [type(event) for event in events if not isinstance(event, Log)][:2] == [Queued, Started]
    assert isinstance(events[-1], Finished)
    build = events[-1].build
    assert (build.state, build.tags) == ("succeeded", ("1.2", "latest"))
    assert response.headers["location"] == f"/api/builds/{build.id}"
    plan = (await house.owner.build(build.id)).plan
    assert plan == Plan(target="final", build_args={"V": "7"}, no_cache=True)
    assert unpacked(await archive_of(house, grant.context)) == FILES


async def test_the_same_key_is_the_same_build_and_another_context_is_refused(house: House) -> None:
    await house.runner()
    http = house.http(house.owner_token)
    headers = {"Idempotency-Key": "deploy-7"}
    seen = []
    for _ in range(2):
        async with http.stream(
            "PUT", "/api/builds:run?project=web", content=tar_of(FILES), headers=headers
        ) as response:
            seen.append(response.headers["location"])
    assert seen[0] == seen[1]
    other = await http.post(
        "/api/builds:run?project=web",
        content=tar_of({**FILES, "src/main": b"other"}),
        headers=headers,
    )
    assert other.status_code == 409
    assert other.json()["type"].endswith("key-reused")


@pytest.mark.parametrize(("on_close", "state"), [("detach", "queued"), ("cancel", "cancelled")])
async def test_closing_the_connection_detaches_or_cancels(
    house: House, on_close: str, state: str
) -> None:
    await house.runner()
    http = house.http(house.owner_token)
    path = f"/api/builds:run?project=web&if_nobody=wait&on_close={on_close}"
    async with http.stream("POST", path, content=tar_of(FILES)) as response:
        build_id = response.headers["location"].rpartition("/")[2]
    await http.aclose()

    async def reached() -> bool:
        return (await house.owner.build(build_id)).state == state

    await house.until_watched(build_id, 0)  # the server hears of it in its own time
    await eventually(reached, within=60)
    if state == "queued":
        await asyncio.sleep(0.5)
        assert await reached()


async def test_a_body_that_is_cut_is_no_build(house: House) -> None:
    async def cut() -> AsyncIterator[bytes]:
        yield tar_of(FILES)[:100_000]
        raise ConnectionError

    with pytest.raises((ConnectionError, httpx.HTTPError)):
        await house.http(house.owner_token).post("/api/builds:run?project=web", content=cut())
    assert (await house.owner.builds()).builds == ()


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("", "project"),
        ("project=web&t=shop:1", "project"),
        ("project=web&squash=1", "squash is not honoured"),
        ("project=web&buildargs=[]", "buildargs"),
        ("project=web&buildargs=%7B%22a%22:1%7D", "buildargs"),
        ("project=web&labels=" + "[" * 2000, "labels"),
        ("project=web&on_close=pause", "on_close"),
        ("project=web&networkmode=host", "network"),
        ("project=Web!", "project"),
    ],
)
async def test_a_query_that_is_wrong_is_refused_by_name(
    house: House, query: str, says: str
) -> None:
    answered = await house.http(house.owner_token).post(
        f"/api/builds:run?{query}", content=tar_of(FILES)
    )
    assert answered.status_code == 400, answered.text
    assert says in json.dumps(answered.json())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no tar at all" * 100,
        gzip.compress(b"no tar"),
        gzip.compress(tar_of(FILES))[:-20],
        zstandard.compress(tar_of(FILES))[:-20],
        b"\x28\xb5\x2f\xfd" + bytes(100),
        tar_of({"../escaped": b"x"}),
        tar_of(FILES)[:2000],
    ],
)
async def test_what_is_no_context_is_refused_and_no_build(house: House, body: bytes) -> None:
    answered = await house.http(house.owner_token).post("/api/builds:run?project=web", content=body)
    assert answered.status_code == 400, answered.text
    assert answered.json()["hint"]
    assert (await house.owner.builds()).builds == ()


async def test_the_tars_own_ignore_file_is_applied() -> None:
    files = {
        "Dockerfile": b"",
        ".dockerignore": b"*\n!src\nsrc/tmp\n",
        "src/main": b"",
        "src/tmp/x": b"",
        "other": b"",
        "web.Dockerfile": b"",
    }
    assert entries_of(tar_of(files)) == [".dockerignore", "Dockerfile", "src", "src/main"]
    own = {**files, "web.Dockerfile.dockerignore": b"src\n"}
    assert entries_of(tar_of(own), "web.Dockerfile") == [
        ".dockerignore",
        "Dockerfile",
        "other",
        "web.Dockerfile",
        "web.Dockerfile.dockerignore",
    ]


def test_names_twice_links_and_folders_that_are_not_named() -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in ((".", None), ("a/b/c", b"old"), ("a/b/c", b"new"), ("z", b"z")):
            member = tarfile.TarInfo(name)
            member.type = tarfile.REGTYPE if data is not None else tarfile.DIRTYPE
            member.size = len(data or b"")
            tar.addfile(member, io.BytesIO(data or b""))
        for name, kind, target in (
            ("hard", tarfile.LNKTYPE, "a/b/c"),
            ("soft", tarfile.SYMTYPE, ".."),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            tar.addfile(member)
    found = pack_tar(io.BytesIO(packed.getvalue()))
    entries = {e.name: e for page in found.pages for e in parse_page(page)}
    assert sorted(entries) == [b"a", b"a/b", b"a/b/c", b"hard", b"soft", b"z"]
    assert found.read(entries[b"hard"].digests) == b"new"
    assert entries[b"soft"].target == b".."


@pytest.mark.parametrize(
    "names", [[("a", None), ("a/b", None)], [("a", "nowhere")], [("a", "../x")]]
)
def test_a_tar_that_cannot_be_a_tree_is_refused(names: list[tuple[str, str | None]]) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, target in names:
            member = tarfile.TarInfo(name)
            if target is not None:
                member.type, member.linkname = tarfile.LNKTYPE, target
            tar.addfile(member)
    with pytest.raises(Invalid):
        pack_tar(io.BytesIO(packed.getvalue()))


def test_an_ignore_file_that_is_too_much_for_the_names_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tarred, "LOOKS_MAX", 6)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in ((".dockerignore", b"a\nb\nc\n"), ("d", b""), ("e", b"")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    with pytest.raises(Invalid, match="3 patterns of its ignore file are too many for 3 names"):
        pack_tar(io.BytesIO(packed.getvalue()))


def test_folders_that_nobody_named_are_added_once_and_not_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for number in range(1000):
            tar.addfile(tarfile.TarInfo(f"{'a/' * 45}{number:05d}"))
    found = pack_tar(io.BytesIO(packed.getvalue()))
    assert sum(len(parse_page(page)) for page in found.pages) == 1045
    # The names that are there fit, and with the folders above them they do not.
    monkeypatch.setattr(tarred, "NAMES_BYTES_MAX", 1000 * 95 + 100)
    with pytest.raises(Invalid, match="too many names"):
        pack_tar(io.BytesIO(packed.getvalue()))
