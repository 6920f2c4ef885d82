"""What is malformed, oversized or absurd gets a problem document, never a traceback."""

import httpx
import pytest
import zstandard

from pierhead.protocol.problem import PROBLEM_MEDIA_TYPE
from pierhead.protocol.version import FENCE_HEADER, OFFSET_HEADER, SPOKEN
from tests.integration.router.stage import House

DEEP = b"[" * 100_000


@pytest.mark.parametrize("path", ["/api/builds", "/api/contexts", "/api/projects", "/api/runners"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"[]",
        b"null",
        b'{"project":7}',
        b'{"name":"\\ud800","project":"\\ud800"}',
        b"\xff\xfe",
        DEEP,
        b'{"project":' + DEEP,
        b'"' + b"x" * (1024 * 1024 + 1) + b'"',
    ],
    ids=["empty", "text", "list", "null", "kind", "surrogate", "bytes", "deep", "deeper", "large"],
)
async def test_a_document_that_is_none_is_refused(house: House, path: str, body: bytes) -> None:
    answered = await house.http(house.owner_token).post(path, content=body)

    assert answered.status_code in {400, 413}
    assert answered.headers["content-type"] == PROBLEM_MEDIA_TYPE


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=-1", "limit=201", "limit=x", "after=x", "after=²", "after=" + "9" * 30],
)
async def test_a_page_that_is_none_is_refused(house: House, query: str) -> None:
    answered = await house.http(house.owner_token).get(f"/api/builds?{query}")

    assert answered.status_code == 400
    assert answered.headers["content-type"] == PROBLEM_MEDIA_TYPE


@pytest.mark.parametrize("cursor", ["x", "1", "1.2.3", "-1.0", "1." + "9" * 40])
async def test_a_cursor_that_is_none_is_refused(house: House, cursor: str) -> None:
    build = await house.submit()

    answered = await house.http(house.owner_token).get(
        f"/api/builds/{build.id}/events", headers={"Last-Event-ID": cursor}
    )

    assert answered.status_code == 400


async def test_another_version_of_the_protocol_is_refused_by_name(house: House) -> None:
    answered = await house.http(house.owner_token).get(
        "/api/builds", headers={"Pierhead-Protocol": "99"}
    )

    found = answered.json()
    assert found["type"].endswith("version-unsupported")
    assert (found["low"], found["high"]) == (SPOKEN.low, SPOKEN.high)
    assert found["hint"].startswith("this control plane is the older one")


@pytest.mark.parametrize("path", ["/", "/api", "/api/nothing", "/api/builds/b_x%00/logs"])
async def test_an_unknown_path_is_a_problem_document(house: House, path: str) -> None:
    answered = await house.http(house.owner_token).get(path)

    assert answered.status_code == 404
    assert answered.headers["content-type"] == PROBLEM_MEDIA_TYPE


@pytest.mark.parametrize("value", ["Basic é", "Basic ====", "Basic /w==", "Bearer é", "Basic"])
async def test_credentials_that_are_none_are_refused_as_such(house: House, value: str) -> None:
    async with httpx.AsyncClient(base_url=house.url, trust_env=False, timeout=60) as anybody:
        answered = await anybody.get(
            "/api/builds", headers=[(b"Authorization", value.encode("latin-1"))]
        )

    assert answered.status_code == 401
    assert answered.headers["content-type"] == PROBLEM_MEDIA_TYPE


@pytest.mark.parametrize("offset", [5, 10**6, 999_999_999_999_999])
async def test_behind_the_end_of_a_log_there_is_nothing(house: House, offset: int) -> None:
    build, grant = await house.leased(await house.runner())
    await house.client(grant.token).append_log(
        build.id, grant.fence, 0, zstandard.compress(b"line\n")
    )

    assert await house.owner.log(build.id, offset=offset) == b""


LINES = zstandard.compress(b"%d\n" * 1000)


@pytest.mark.parametrize(
    ("encoding", "part"), [("gzip", b"\x1f\x8b"), ("zstd", b"line\n"), ("zstd", LINES[:-2])]
)
async def test_a_part_of_a_log_that_cannot_be_read_whole_is_not_stored(
    house: House, encoding: str, part: bytes
) -> None:
    build, grant = await house.leased(await house.runner())
    headers = {FENCE_HEADER: "1", OFFSET_HEADER: "0", "Content-Encoding": encoding}

    answered = await house.http(grant.token).patch(
        f"/api/builds/{build.id}/logs", content=part, headers=headers
    )

    assert answered.status_code == 400
    assert await house.owner.log(build.id) == b""
