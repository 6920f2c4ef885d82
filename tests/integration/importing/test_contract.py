"""One contract for all builders: a far control plane, one in this process, a platform's own."""

from datetime import timedelta
from pathlib import Path

from pierhead.router import Event, FellBack, RoutedImageBuilder, RouterExecutor
from pierhead.router.testing import assert_image_builder_contract
from tests.acceptance.stage import Stage
from tests.integration.importing.conftest import DOCKERFILE, SLEEP, executor, request
from tests.integration.importing.local import BuildahBuilder


async def test_a_control_plane_over_http_keeps_the_contract(plane: Stage, tmp_path: Path) -> None:
    builder = RoutedImageBuilder(executor(plane))

    await assert_image_builder_contract(builder, slow=DOCKERFILE + SLEEP)


async def test_a_platforms_own_builder_keeps_the_contract(tmp_path: Path) -> None:
    await assert_image_builder_contract(BuildahBuilder(tmp_path), slow=DOCKERFILE + SLEEP)


async def test_the_two_together_keep_it_when_the_control_plane_is_away(tmp_path: Path) -> None:
    away = RouterExecutor("http://127.0.0.1:9", token="x", patience=timedelta(seconds=0.2))
    heard: list[Event] = []

    builder = RoutedImageBuilder(away, local=BuildahBuilder(tmp_path / "store"))
    image = await builder.build(request(tmp_path / "src"), on_event=heard.append)

    assert image.build_id == "local"
    assert isinstance(heard[0], FellBack)
    assert "hello from the build" in str(heard)
