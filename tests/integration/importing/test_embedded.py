"""A control plane inside of a program: it builds, and leaves the program's own things alone."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import structlog
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from pierhead.protocol.client.inprocess import InProcess
from pierhead.router import (
    BuildRequest,
    DirectoryContext,
    Eligible,
    RefusedError,
    RoutedImageBuilder,
    RouterExecutor,
    RouterUnavailableError,
)
from pierhead.router.embedded import EmbeddedRouter
from pierhead.router.testing import assert_image_builder_contract
from pierhead.server.serve import Service, listen
from tests.integration.importing.conftest import DOCKERFILE, SLEEP, request

LOOPBACK = ("127.0.0.1", 0)


async def test_a_control_plane_in_this_process_keeps_the_contract(tmp_path: Path) -> None:
    async with EmbeddedRouter(data_dir=tmp_path / "data", listen=LOOPBACK, here=True) as router:
        await assert_image_builder_contract(RoutedImageBuilder(router), slow=DOCKERFILE + SLEEP)


@contextlib.asynccontextmanager
async def serving(app: Starlette) -> AsyncIterator[str]:
    """Serve a program on a port of loopback."""
    listener = listen("127.0.0.1", 0)
    service = Service(app, drain=lambda: None)
    task = asyncio.create_task(service.run([listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        service.stop()
        await task
        listener.close()


async def test_below_a_path_of_a_program_the_whole_api_answers(tmp_path: Path) -> None:
    router = EmbeddedRouter(data_dir=tmp_path / "data", public_url="http://127.0.0.1:9")

    async def home(_request: object) -> PlainTextResponse:
        return PlainTextResponse("the program's own page")

    app = Starlette(routes=[Route("/", home), Mount("/pierhead", router.asgi)])
    async with router, serving(app) as url:
        far = RouterExecutor(f"{url}/pierhead", token=router.owner_token)
        builder = RoutedImageBuilder(far)
        build = await builder.start(request(tmp_path / "src", key="1"))
        again = await RoutedImageBuilder(router).attach(build.id)

        assert again.id == build.id
        assert await builder.why(request(tmp_path / "src")) == ()
        assert (await builder.capabilities()).registry == "127.0.0.1:9"


async def test_a_runner_joins_on_the_port_of_its_own(tmp_path: Path) -> None:
    async with EmbeddedRouter(data_dir=tmp_path / "data", listen=LOOPBACK, here=True) as router:
        far = RouterExecutor(router.public_url, token=router.owner_token)
        image = await RoutedImageBuilder(far).build(request(tmp_path / "src"))

        assert image.built_on == "here"
        assert image.reference.startswith(router.public_url.removeprefix("http://"))


async def test_signals_logging_and_output_of_the_program_stay_as_they_are(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    root = logging.getLogger()
    before = (list(root.handlers), root.level, structlog.is_configured())

    async with EmbeddedRouter(data_dir=tmp_path / "data", listen=LOOPBACK) as router:
        await RoutedImageBuilder(router).capabilities()
        assert {number: signal.getsignal(number) for number in handlers} == handlers
        loop = asyncio.get_running_loop()
        assert not loop.remove_signal_handler(signal.SIGTERM), "a handler was set"

    assert (list(root.handlers), root.level, structlog.is_configured()) == before
    assert capfd.readouterr() == ("", "")


async def test_several_live_in_one_program_and_a_folder_has_one(tmp_path: Path) -> None:
    one = EmbeddedRouter(data_dir=tmp_path / "one", listen=LOOPBACK)
    two = EmbeddedRouter(
        data_dir=tmp_path / "two", database_url=f"sqlite:///{tmp_path}/own.db", listen=LOOPBACK
    )
    async with one, two:
        assert one.owner_token != two.owner_token
        assert (tmp_path / "own.db").is_file()
        stranger = RouterExecutor(two.public_url, token=one.owner_token)
        with pytest.raises(RefusedError, match="not known here"):
            await stranger.capabilities()
        with pytest.raises(RouterUnavailableError, match="runs on"):
            async with EmbeddedRouter(data_dir=tmp_path / "one"):
                pass


async def test_before_and_after_its_block_it_says_that_it_does_not_run(tmp_path: Path) -> None:
    router = EmbeddedRouter(data_dir=tmp_path / "data", listen=LOOPBACK)
    builder = RoutedImageBuilder(router)
    wanted = BuildRequest(context=DirectoryContext(path=tmp_path), project="acme/web")

    async def refused() -> None:
        with pytest.raises(RouterUnavailableError, match="not running"):
            _ = router.owner_token
        answer = await InProcess(router.asgi).handle_async_request(
            httpx.Request("GET", "http://127.0.0.1/api/meta")
        )
        assert answer.status_code == 503
        assert b"async with router" in await answer.aread()

    await refused()
    async with router:
        assert not any(isinstance(one, Eligible) for one in await builder.why(wanted))
    await refused()
    async with router:  # and once more, on what it kept
        assert (await builder.capabilities()).runners == ()


@pytest.mark.parametrize("url", ["postgresql://db/pierhead", "sqlite:///", "mysql://x"])
def test_a_database_that_is_not_taken_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(RefusedError, match="only SQLite"):
        EmbeddedRouter(data_dir=tmp_path, database_url=url)


async def test_a_public_url_with_a_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="not an address"):
        async with EmbeddedRouter(data_dir=tmp_path, public_url="https://x.example/pierhead"):
            pass
