"""One contract for all builders: a far control plane, one in this process, a platform's own."""

from pathlib import Path

from pierhead.router import RoutedImageBuilder
from pierhead.router.testing import assert_image_builder_contract
from tests.acceptance.stage import Stage
from tests.integration.importing.conftest import DOCKERFILE, SLEEP, executor


async def test_a_control_plane_over_http_keeps_the_contract(plane: Stage, tmp_path: Path) -> None:
    builder = RoutedImageBuilder(executor(plane))

    await assert_image_builder_contract(builder, slow=DOCKERFILE + SLEEP)
