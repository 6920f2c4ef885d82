"""A registry that lies or breaks off in a layer: the reader sees it, and the log says it once."""

import asyncio
import contextlib
import json
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import uvicorn

from pierhead.protocol.client.trust import Trust
from pierhead.protocol.digest import digest_of
from pierhead.protocol.errors import IntegrityError, PierheadError, Unavailable
from pierhead.runner.adapters.bases import HttpBases
from pierhead.runner.ports import BaseAsk
from pierhead.server.connection import Connection
from pierhead.server.serve import listen
from tests.integration.mirror.conftest import attempt, blob, login, manifest
from tests.integration.mirror.others import Strange
from tests.integration.mirror.test_tls import certified
from tests.integration.router.stage import House


@contextlib.asynccontextmanager
async def served(house: House, folder: Path, scheme: str) -> AsyncIterator[httpx.AsyncClient]:
    """Serve the router on connections of our own; give a client with the token of a build."""
    file, ca = certified(folder, "localhost")
    listener = listen("127.0.0.1", 0)
    config = uvicorn.Config(
        house.router.app,
        http=Connection,
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_keep_alive=75,
        loop="none",
        ssl_certfile=file if scheme == "https" else None,
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve([listener]))
    token = (await attempt(house)).headers["authorization"]
    try:
        async with httpx.AsyncClient(
            base_url=f"{scheme}://localhost:{listener.getsockname()[1]}",
            headers={"Authorization": token},
            verify=ssl.create_default_context(cadata=ca),
            trust_env=False,
            timeout=60,
        ) as http:
            yield http
    finally:
        server.should_exit = server.force_exit = True
        await task
        listener.close()


def of_the_other(record: logging.LogRecord) -> bool:
    """Say whether the registry that is played here complains, of its own cut."""
    error = record.exc_info[1] if record.exc_info else None
    return str(error) == "Response content shorter than Content-Length"


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("how", ["lies", "breaks off"])
async def test_it_is_cut_for_the_reader_and_one_line_for_the_owner(
    house: House,
    strange: Strange,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    scheme: str,
    how: str,
) -> None:
    await login(house, strange.host, username=None, secret=None)
    layer = strange.images["me/base"].layer
    digest = digest_of(layer)
    if how == "lies":
        strange.spoilt[digest] = layer[:-1] + b"!"
    else:
        strange.cut_after = 5000
    async with served(house, tmp_path, scheme) as http:
        said = await http.get(manifest("me/base", "latest", strange.host))
        assert said.status_code == 200
        caplog.clear()
        with caplog.at_level(logging.WARNING), pytest.raises(httpx.RemoteProtocolError):
            await http.get(blob("me/base", digest, strange.host))
        told = [one for one in caplog.records if not of_the_other(one)]
        strange.cut_after = None
        strange.spoilt.clear()
        again = await http.get(blob("me/base", digest, strange.host))
        assert again.content == layer
    (record,) = told
    line = json.loads(record.getMessage())
    assert line["event"] == "mirror.broken"
    assert line["level"] == "warning"
    assert strange.host in line["error"]


async def test_whoever_goes_on_after_a_lie_is_told_of_it_and_the_next_one_has_it_anew(
    house: House, strange: Strange
) -> None:
    await login(house, strange.host, username=None, secret=None)
    layer = strange.images["me/base"].layer
    address = blob("me/base", digest_of(layer), strange.host)
    strange.spoilt[digest_of(layer)] = layer[:-1] + b"!"
    web = await attempt(house)
    with pytest.raises(httpx.RemoteProtocolError):
        await web.get(address)
    going_on = {"Range": f"bytes={len(layer) - 1}-"}
    (error,) = (await web.get(address, headers=going_on)).json()["errors"]
    assert error["code"] == "DIGEST_INVALID"
    assert error["message"].startswith(f"{strange.host} sent other bytes than ")
    strange.spoilt.clear()
    assert (await web.get(address, headers=going_on)).content == layer[-1:]


@pytest.mark.parametrize("how", ["lies", "breaks off"])
async def test_a_runner_hears_which_registry_it_was(
    house: House, strange: Strange, how: str
) -> None:
    await login(house, strange.host, username=None, secret=None)
    layer = strange.images["me/base"].layer
    if how == "lies":
        strange.spoilt[digest_of(layer)] = layer[:-1] + b"!"
    else:
        strange.cut_after = 5000
    token = (await attempt(house)).headers["authorization"].removeprefix("Bearer ")
    bases = HttpBases(f"http://{house.host}", token, Trust(None))
    reference = digest_of(layer)
    wanted = BaseAsk(
        method="GET", host=strange.host, name="me/base", kind="blobs", reference=reference
    )
    async with bases.ask(wanted) as answer:
        with pytest.raises(PierheadError) as refused:
            assert len([piece async for piece in answer.chunks]) < 2
    await bases.close()
    assert isinstance(refused.value, IntegrityError if how == "lies" else Unavailable)
    assert strange.host in str(refused.value)
    hint = refused.value.problem.hint or ""
    assert hint.startswith("ask whoever" if how == "lies" else "build again")


async def test_a_manifest_that_is_too_large_is_not_the_fault_of_who_asks(
    house: House, strange: Strange, monkeypatch: pytest.MonkeyPatch
) -> None:
    await login(house, strange.host, username=None, secret=None)
    monkeypatch.setattr("pierhead.router.adapters.upstream.MANIFEST_BYTES_MAX", 100)
    web = await attempt(house)
    answer = await web.get(manifest("me/base", "latest", strange.host))
    (error,) = answer.json()["errors"]
    image = f"{strange.host}/me/base:latest"
    expected = f"sends more of the manifest of {image} than the 100 bytes that are taken of it"
    assert error["message"] == f"{strange.host} {expected}"
    hint = f"ask whoever runs {strange.host}, or build from another image: FROM IMAGE"
    assert error["detail"]["hint"] == hint
