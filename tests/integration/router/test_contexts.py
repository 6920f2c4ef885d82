"""A context comes in by what is missing of it, and is one project's alone."""

import asyncio
import contextlib
import errno
import json
import os
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
import zstandard

from pierhead.protocol.archive import Kind, Reader
from pierhead.protocol.client.pack import Packed
from pierhead.protocol.client.upload import upload
from pierhead.protocol.errors import IntegrityError, Invalid, Refused, Unavailable
from pierhead.protocol.objects import BODY_BYTES_MAX, OBJECTS_MEDIA_TYPE, frame
from pierhead.protocol.plan import ContextOffer, ContextRef, Plan, Submit
from pierhead.protocol.project import NewProject
from pierhead.protocol.tree import CHUNK_BYTES, Entry, pages_of
from pierhead.router.adapters import contents
from tests.acceptance.stage import eventually
from tests.contexts import described
from tests.integration.router.stage import House, open_house

FILES = {f"src/{number:04}": os.urandom(200 + number) for number in range(600)}


def offered(packed: Packed, project: str = "web", **changed: object) -> ContextOffer:
    pages = b"".join(sha256(page).digest() for page in packed.pages)
    values = {"project": project, "digest": packed.digest, "pages": pages, **changed}
    return ContextOffer(**values)  # type: ignore[arg-type]


def contents_of(packed: Packed) -> list[bytes]:
    return [*packed.pages, *(packed.read(digest) for digest in packed.sources)]


async def archive_of(house: House, context: ContextRef, project: str = "web") -> bytes:
    archive = await house.router.contexts.archive(project, context.digest)
    assert archive is not None
    packed = b"".join(
        part
        if isinstance(part, bytes)
        else part.path.read_bytes()[part.offset : part.offset + part.length]
        for part in archive.parts
    )
    return zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True).read()


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, size: int, /) -> bytes:
        part, self._data = self._data[:size], self._data[size:]
        return part


def unpacked(tar: bytes) -> dict[str, bytes]:
    reader = Reader(_Bytes(tar))
    found = {}
    for member in reader.members():
        data = b""
        while part := reader.read(2**20):
            data += part
        if member.kind is Kind.FILE:
            found[member.name.decode()] = data
    return found


async def test_what_was_brought_is_in_the_archive(house: House) -> None:
    files = {
        **FILES,
        "large": os.urandom(2 * CHUNK_BYTES + 5),
        "empty": b"",
        "same": FILES["src/0000"],
    }
    packed = described(files)

    context = (await upload(house.owner, "web", packed)).context

    assert context.digest == packed.digest
    assert (context.files, context.size_bytes) == (len(files), sum(map(len, files.values())))
    tar = await archive_of(house, context)
    assert len(tar) == context.unpacked_bytes
    assert unpacked(tar) == files


async def test_a_second_context_brings_and_stores_only_what_changed(house: House) -> None:
    await upload(house.owner, "web", described(FILES))
    stored = _stored(house)
    changed = {**FILES, "src/0300": b"changed"}

    second = await upload(house.owner, "web", described(changed))

    assert second.files == 1
    assert second.sent_bytes < stored / 10
    assert _stored(house) - stored < 0.6 * stored  # the parts of one page
    assert unpacked(await archive_of(house, second.context)) == changed
    assert (
        unpacked(
            await archive_of(house, (await upload(house.owner, "web", described(FILES))).context)
        )
        == FILES
    )


def _stored(house: House) -> int:
    return sum(file.stat().st_size for file in (house.data / "contexts").iterdir())


async def test_what_another_project_has_is_missing_for_this_one(house: House) -> None:
    packed = described(FILES)
    there = (await upload(house.owner, "web", packed)).context

    state = await house.owner.offer_context(offered(packed, "shop"))
    assert state.context is None
    assert state.missing == offered(packed).pages  # not even a page is known
    await house.owner.send_objects("shop", b"".join(frame([page]) for page in packed.pages))
    state = await house.owner.offer_context(offered(packed, "shop"))
    assert len(state.missing) == 32 * len(FILES)
    with pytest.raises(Invalid, match="not uploaded to shop"):
        await house.owner.submit(Submit(project="shop", plan=Plan(), context=there))
    assert await house.router.contexts.archive("shop", there.digest) is None

    token = await house.project_token("shop")
    for call in (
        house.client(token).offer_context(offered(packed, "web")),
        house.client(token).send_objects("web", frame([b"x"])),
    ):
        with pytest.raises(Refused) as refused:
            await call
        assert refused.value.problem.slug == "not-found"


async def test_a_reference_that_says_other_than_what_is_there_is_refused(house: House) -> None:
    there = (await upload(house.owner, "web", described(FILES))).context
    for change in ({"size_bytes": 1}, {"files": 1}, {"unpacked_bytes": 1}):
        values = {name: getattr(there, name) for name in ContextRef.__struct_fields__}
        wrong = ContextRef(**{**values, **change})
        with pytest.raises(Invalid, match="not uploaded"):
            await house.owner.submit(Submit(project="web", plan=Plan(), context=wrong))


async def test_bodies_may_come_in_any_order_twice_and_before_the_offer(house: House) -> None:
    packed = described(FILES)
    objects = contents_of(packed)
    bodies = [frame(objects[at : at + 50]) for at in range(0, len(objects), 50)]
    for body in [*reversed(bodies), *bodies]:
        await house.owner.send_objects("web", body)

    state = await house.owner.offer_context(offered(packed))

    assert state.context is not None
    assert unpacked(await archive_of(house, state.context)) == FILES


async def test_what_came_before_a_cut_is_kept(house: House) -> None:
    packed = described(FILES)
    body = b"".join(frame([data]) for data in contents_of(packed))

    async def cut() -> AsyncIterator[bytes]:
        yield body[: len(body) // 2]
        raise ConnectionError

    http = house.http(house.owner_token)
    with contextlib.suppress(ConnectionError, httpx.HTTPError):
        await http.post("/api/contexts/objects?project=web", content=cut())

    async def half() -> bool:
        # Of contents: before any of the body is there, the pages are what is missing.
        state = await house.owner.offer_context(offered(packed))
        return 0.4 * len(FILES) < len(state.missing) // 32 < 0.6 * len(FILES)

    await eventually(half, within=60)  # the server hears of the cut in its own time


async def test_a_body_that_is_too_large_is_refused(house: House) -> None:
    body = b"".join(frame([os.urandom(CHUNK_BYTES)]) for _ in range(5))
    with pytest.raises(Invalid, match="at most") as refused:
        await house.owner.send_objects("web", body)
    assert refused.value.problem.slug == "too-large"
    assert BODY_BYTES_MAX < 5 * CHUNK_BYTES


@pytest.mark.parametrize(
    "body", [b"x", b"nonsense, and more of it", frame([b"x"])[:-1], frame([b"x"]) + b"\0"]
)
async def test_a_body_that_is_none_is_refused(house: House, body: bytes) -> None:
    with pytest.raises(Invalid, match="not a body of objects"):
        await house.owner.send_objects("web", body)


async def test_a_body_without_a_project_is_refused(house: House) -> None:
    headers = {"Content-Type": OBJECTS_MEDIA_TYPE}
    answered = await house.http(house.owner_token).post(
        "/api/contexts/objects", content=frame([b"x"]), headers=headers
    )
    assert answered.status_code == 400
    assert answered.json()["hint"] == "add ?project=NAME"


async def test_pages_of_another_tree_than_was_said_are_refused(house: House) -> None:
    packed = described(FILES)
    await upload(house.owner, "web", packed)
    wrong = offered(packed, digest="sha256:" + "1" * 64)
    with pytest.raises(IntegrityError):
        await house.owner.offer_context(wrong)
    with pytest.raises(Invalid):
        await house.owner.offer_context(offered(packed, digest="sha256:" + "1" * 64, pages=b"x"))


@pytest.mark.parametrize("name", [b"../escaped", b"/etc/passwd", b"a/./b"])
async def test_a_name_that_leaves_the_context_is_refused(house: House, name: bytes) -> None:
    pages = pages_of([Entry(name, Kind.LINK, target=b"x")])
    await house.owner.send_objects("web", frame(pages.pages))
    offer = ContextOffer(
        project="web", digest=pages.tree.digest(), pages=sha256(pages.pages[0]).digest()
    )
    with pytest.raises(Invalid) as refused:
        await house.owner.offer_context(offer)
    assert refused.value.problem.slug == "invalid-document"


async def test_a_description_of_more_than_may_be_is_refused(house: House) -> None:
    chunk = bytes(CHUNK_BYTES)
    digest, count = sha256(chunk).digest(), 1025
    entry = Entry(b"huge", Kind.FILE, size=count * CHUNK_BYTES, digests=digest * count)
    pages = pages_of([entry])
    await house.owner.send_objects("web", frame([chunk]) + frame(pages.pages))
    offer = ContextOffer(
        project="web", digest=pages.tree.digest(), pages=sha256(pages.pages[0]).digest()
    )
    with pytest.raises(Invalid) as refused:
        await house.owner.offer_context(offer)
    assert refused.value.problem.slug == "context-too-large"
    assert _stored(house) < 2**20


async def test_the_archive_is_given_in_parts_and_its_tag_names_these_bytes(house: House) -> None:
    runner = await house.runner()
    build, grant = await house.leased(runner)
    http = house.http(grant.token)
    path, fence = f"/api/builds/{build.id}/context.tar.zst", {"Pierhead-Fence": str(grant.fence)}
    whole = await http.get(path, headers=fence)
    tag, size = whole.headers["etag"], len(whole.content)
    for wanted, part in (
        ("bytes=5-", slice(5, None)),
        ("bytes=5-9", slice(5, 10)),
        ("bytes=0-99999", slice(0, None)),
    ):
        answered = await http.get(path, headers={**fence, "Range": wanted, "If-Range": tag})
        assert answered.status_code == 206
        assert answered.content == whole.content[part]
        assert answered.headers["content-range"].endswith(f"/{size}")
    other = await http.get(path, headers={**fence, "Range": "bytes=5-", "If-Range": '"other"'})
    assert (other.status_code, other.content) == (200, whole.content)
    beyond = await http.get(path, headers={**fence, "Range": f"bytes={size}-"})
    assert beyond.status_code == 416
    attempt = house.client(grant.token)
    assert [part async for part in attempt.context(build.id, grant.fence, offset=size)] == []


async def test_a_context_that_nobody_used_for_long_is_forgotten_and_its_disk_is_free(
    house: House,
) -> None:
    packed = described(FILES)
    await upload(house.owner, "web", packed)
    build, grant = await house.leased(await house.runner())  # it needs another context
    house.clock.advance(15 * 24 * 3600)
    for file in (house.data / "contexts").iterdir():
        os.utime(file, (1, 1))
    await _age(house)

    await house.router.contexts.sweep()

    state = await house.owner.offer_context(offered(packed))
    assert state.context is None
    assert len(list((house.data / "contexts").iterdir())) == 1
    attempt = house.client(grant.token)
    assert [part async for part in attempt.context(build.id, grant.fence)]
    again = (await upload(house.owner, "web", packed)).context
    assert unpacked(await archive_of(house, again)) == FILES


async def _age(house: House) -> None:
    """Let all that is stored be two days old."""
    import sqlite3

    with sqlite3.connect(house.data / "contexts.db") as database:
        database.execute("UPDATE content_files SET created_at = created_at - 172800")


async def test_an_upload_that_nobody_ended_is_gone_after_a_day(house: House) -> None:
    await house.owner.send_objects("web", frame([os.urandom(1000)]))
    assert _stored(house) > 0
    await house.router.contexts.sweep()
    assert _stored(house) > 0
    await _age(house)
    await house.router.contexts.sweep()
    assert _stored(house) == 0


async def test_files_that_a_crash_left_are_removed_and_what_was_acknowledged_is_there(
    tmp_path: Path,
) -> None:
    packed = described(FILES)
    async with open_house(tmp_path) as house:
        await house.owner.send_objects("web", frame(contents_of(packed)))
        stray = house.data / "contexts" / "c_stray.new"
        stray.write_bytes(b"half")
        os.utime(stray, (1, 1))
    async with open_house(tmp_path) as house:
        await house.router.contexts.sweep()
        state = await house.owner.offer_context(offered(packed))
        assert not stray.exists()
        assert state.context is not None
        assert unpacked(await archive_of(house, state.context)) == FILES


async def test_content_that_the_disk_damaged_is_asked_for_again(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    await upload(house.owner, "web", described(FILES))
    (content,) = (house.data / "contexts").iterdir()
    content.write_bytes(content.read_bytes()[:-1000] + bytes(1000))
    changed = {**FILES, "src/0599": b"changed"}

    context = (await upload(house.owner, "web", described(changed))).context

    assert unpacked(await archive_of(house, context)) == changed
    told = [json.loads(line.message) for line in caplog.records if "damaged" in line.message]
    assert [(line["event"], line["file"]) for line in told] == [("contents.damaged", content.name)]


async def test_a_large_file_that_the_disk_damaged_is_asked_for_again(house: House) -> None:
    large = {"a": b"small", "large": os.urandom(CHUNK_BYTES + 300_000), "z": b"small"}
    first = (await upload(house.owner, "web", described(large))).context
    assert unpacked(await archive_of(house, first)) == large
    (content,) = (house.data / "contexts").iterdir()
    damaged = bytearray(content.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    content.write_bytes(damaged)
    changed = {**large, "z": b"changed"}

    context = (await upload(house.owner, "web", described(changed))).context

    assert unpacked(await archive_of(house, context)) == changed


@contextlib.asynccontextmanager
async def on_disk(tmp_path: Path, disk: Path) -> AsyncIterator[House]:
    """Open a house whose contexts are on a disk of their own."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "contexts").symlink_to(disk)
    async with open_house(tmp_path) as house:
        yield house


async def test_what_a_full_disk_did_not_take_is_asked_for_and_nothing_is_said_to_be_damaged(
    tmp_path: Path, tiny_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    packed = described({f"large/{number}": os.urandom(300_000) for number in range(5)})
    objects = contents_of(packed)
    async with on_disk(tmp_path, tiny_disk) as house:
        ballast = tiny_disk / "ballast"
        ballast.write_bytes(bytes(2_700_000))  # room for some of it
        with pytest.raises(Unavailable) as full:
            await house.owner.send_objects("web", b"".join(frame([one]) for one in objects))

        state = await house.owner.offer_context(offered(packed))
        missing = {state.missing[at : at + 32] for at in range(0, len(state.missing), 32)}
        left = [file.name for file in tiny_disk.iterdir()]
        ballast.unlink()
        context = (await upload(house.owner, "web", packed)).context

        assert full.value.problem.slug == "storage-full"
        # Others need the room, and nobody could go on with it.
        assert left == [ballast.name]
        assert missing <= {sha256(one).digest() for one in (*objects, *packed.pages)}
        assert missing
        assert len(unpacked(await archive_of(house, context))) == packed.files
    assert "contents.damaged" not in caplog.text


@pytest.mark.parametrize("broken", ["fsync", "write"])
async def test_of_a_file_that_the_disk_refuses_to_keep_nothing_is_known_and_nothing_left(
    house: House, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    packed = described(FILES)
    disk = house.data / "contexts"
    with monkeypatch.context() as patch:
        if broken == "fsync":
            patch.setattr(os, "fsync", _fails)
        else:
            patch.setattr(contents, "leave_room", _fails)
        with pytest.raises(Unavailable):
            await house.owner.send_objects("web", frame(contents_of(packed)))

    assert list(disk.iterdir()) == []
    assert (await house.owner.offer_context(offered(packed))).missing == offered(packed).pages
    assert unpacked(
        await archive_of(house, (await upload(house.owner, "web", packed)).context)
    ) == (FILES)


def _fails(_: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_project_that_was_removed_leaves_no_content_to_its_successor(
    house: House,
) -> None:
    packed = described(FILES)
    await house.owner.add_project(NewProject(name="web"))
    await upload(house.owner, "web", packed)

    await house.owner.remove_project("web")

    assert _stored(house) == 0
    await house.owner.add_project(NewProject(name="web"))
    assert (await house.owner.offer_context(offered(packed))).missing == offered(packed).pages


async def test_two_at_once_bring_the_same(house: House) -> None:
    packed = described({**FILES, "large": os.urandom(3 * CHUNK_BYTES)})
    both = await asyncio.gather(*(upload(house.owner, "web", packed) for _ in range(4)))
    assert len({one.context.digest for one in both}) == 1
    assert len(unpacked(await archive_of(house, both[0].context))) == packed.files
