"""What becomes of builds when the machine of a runner cannot build them, or cannot any more.

The runner has a view of its own of the folders with the programs: there they are removed.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pierhead.protocol.build import FINAL_STATES, BuildView
from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.plan import Plan
from pierhead.protocol.runner import Capabilities
from tests.small_disk import small_disk

from .stage import BIN, HELLO, Service, eventually, finished, hello, stage, submit

UNCACHED = Plan(no_cache=True)
# Goes on when somebody makes the file in the cache that its runner keeps.
GATED = """\
RUN --mount=type=cache,target=/c echo begun; until test -e /c/go; do sleep 0.1; done
RUN echo second step
"""
INSTALL = "apt-get install -y --no-install-recommends"
VIEW = """\
set -e
mount -t tmpfs tmpfs "$1"
for name in bin sbin; do
  mkdir -p "$1/$name/upper" "$1/$name/work"
  layers="lowerdir=/usr/$name,upperdir=$1/$name/upper,workdir=$1/$name/work"
  mount -t overlay -o "$layers" overlay "/usr/$name"
done
shift
exec "$@"
"""


def own_programs(folder: Path) -> list[str]:
    folder.mkdir()
    return ["unshare", "--mount", "--", "sh", "-c", VIEW, "view", str(folder)]


def there(runner: Service, *command: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a command where the runner is."""
    place = ["nsenter", "--mount", "--target", str(runner.pid), "--"]
    return subprocess.run(
        [*place, *command],
        input=given,
        capture_output=True,
        check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **runner.environment},
    )


def let_go(state: Path) -> None:
    """Let the gated step of a build go on."""
    for cache in state.glob("slot-*/*/tmp/buildah-cache*/*"):
        (cache / "go").touch()


async def able(owner: RouterClient, name: str) -> Capabilities:
    runners = (await owner.capabilities()).runners
    found = next(runner.capabilities for runner in runners if runner.name == name)
    assert found is not None
    return found


async def begun(owner: RouterClient, view: BuildView, runner: str) -> None:
    async def there_is_a_word() -> bool:
        now = await owner.build(view.id)
        assert now.state not in FINAL_STATES, now.result and now.result.failure
        return now.runner == runner and b"\nbegun\n" in await owner.log(view.id)

    await eventually(there_is_a_word, within=120, what=f"{view.id} begins on {runner}")


async def test_a_runtime_that_is_removed_under_a_build_is_no_failure_of_its_step(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as on:
        one = await on.join("one", inside=own_programs(tmp_path / "view"))
        async with on.client() as owner:
            view = await submit(owner, hello(HELLO + GATED), key="gated", plan=UNCACHED)
            await begun(owner, view, "one")
            assert there(one, "rm", "/usr/sbin/runc").returncode == 0
            let_go(on.folder / "one")
            await begun(owner, view, "here")
            let_go(on.folder / "data" / "here")
            ended = await finished(owner, view.id, within=120)
            log = (await owner.log(view.id)).decode()

            async def looked_at() -> bool:
                return (await able(owner, "one")).isolation == "none"

            await eventually(looked_at, within=120)
        status = on.run("status")
        doctor = there(one, str(BIN / "pierhead"), "doctor")

    said = f"runc is not installed: {INSTALL} runc"
    assert (ended.state, ended.runner, ended.fence) == ("succeeded", "here", 2), ended
    assert ended.why_here == f"one could not build it: {said}"
    assert log.startswith(f"note: built here instead of on a runner: {ended.why_here}. ")
    assert said in status.stdout
    assert f"-> {INSTALL} runc\n" in doctor.stdout.decode()
    assert "Traceback" not in (on.folder / "one.log").read_text()


async def test_a_builder_that_is_removed_while_nothing_is_built_is_missed_before_the_next_build(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as on:
        one = await on.join("one", inside=own_programs(tmp_path / "view"))
        buildah = Path("/usr/bin/buildah").read_bytes()
        async with on.client() as owner:
            assert there(one, "rm", "/usr/bin/buildah").returncode == 0

            async def unable() -> bool:
                return (await able(owner, "one")).slots == 0

            await eventually(unable, within=120)
            limits = (await able(owner, "one")).limits
            status = on.run("status")
            first = await finished(owner, (await submit(owner, hello(), key="first")).id)

            put = "cat > /usr/bin/buildah.new && chmod 755 /usr/bin/buildah.new"
            move = "mv /usr/bin/buildah.new /usr/bin/buildah"
            assert there(one, "sh", "-c", f"{put} && {move}", given=buildah).returncode == 0

            async def mended() -> bool:
                return (await able(owner, "one")).isolation == "full"

            await eventually(mended, within=120)
            second = await finished(owner, (await submit(owner, hello(), key="second")).id)

    said = f"buildah is not installed: {INSTALL} buildah"
    assert limits["backend"] == said
    assert f" {said}\n" in status.stdout
    assert "needs you   one is unable" in status.stdout
    assert (first.state, first.runner, first.fence) == ("succeeded", "here", 1), first
    assert (second.state, second.runner, second.fence) == ("succeeded", "one", 1), second


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Give the folder of a runner on a small disk of its own."""
    with small_disk(tmp_path / "one", "size=128m") as folder:
        yield folder


async def test_a_build_for_which_a_runners_disk_is_too_small_is_built_elsewhere(
    tmp_path: Path, small: Path
) -> None:
    big = HELLO + "RUN dd if=/dev/zero of=/big bs=1M count=150\n"
    async with stage(tmp_path) as on:
        await on.join("one")
        async with on.client() as owner:
            view = await submit(owner, hello(big), key="big", plan=UNCACHED)
            ended = await finished(owner, view.id, within=120)
            log = (await owner.log(view.id)).decode()
            alone = await submit(owner, hello(big), key="alone", plan=UNCACHED, if_nobody="fail")
            failed = await finished(owner, alone.id, within=120)

    why = "one could not build it: the runner's disk is full: "
    assert (ended.state, ended.runner, ended.fence) == ("succeeded", "here", 2), ended
    assert log.startswith(f"note: built here instead of on a runner: {why}")
    assert (failed.state, failed.runner, failed.fence) == ("failed", "one", 1), failed
    assert failed.result is not None
    assert failed.result.failure is not None
    assert failed.result.failure.cause == "disk-full"
    assert failed.result.failure.hint == "free some space on the runner, then build again"
