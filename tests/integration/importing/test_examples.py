"""The two platforms of the examples, run against a real control plane.

What belongs to other people's frameworks is stood in for: arq's pool, and Celery's decorator.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from pierhead.protocol.client.inprocess import InProcess
from pierhead.router import BuildRequest, RoutedImageBuilder
from pierhead.router.errors import RouterUnavailableError
from pierhead.router.testing import ScriptedExecutor
from tests.acceptance.stage import ROOT, Stage, eventually
from tests.integration.importing.conftest import DOCKERFILE, SLEEP, executor, request

EXPOSING = DOCKERFILE + "EXPOSE 8080\n"
BROKEN = DOCKERFILE + 'RUN ["/bin/busybox", "cat", "/no-such-file"]\n'


class Pool:
    """Does what arq's pool does: runs jobs as tasks, and aborts one by cancelling its task."""

    def __init__(self, context: dict[str, Any]) -> None:
        self.context = {**context, "redis": self}
        self.jobs: dict[str, asyncio.Task[None]] = {}
        self.deferred: list[tuple[str, float]] = []
        self.functions: dict[str, Callable[..., Awaitable[None]]] = {}

    async def enqueue_job(
        self, name: str, argument: str, _job_id: str | None = None, _defer_by: float = 0
    ) -> None:
        if _defer_by:
            self.deferred.append((argument, _defer_by))
            return
        work = self.functions[name](self.context, argument)
        self.jobs[_job_id or argument] = asyncio.ensure_future(work)

    async def abort_job(self, job_id: str) -> None:
        self.jobs[job_id].cancel()
        await asyncio.wait({self.jobs[job_id]})


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], ModuleType]]:
    """Import modules of an example as a user would, and forget them afterwards."""
    made: list[str] = []

    def load(example: str, name: str) -> ModuleType:
        monkeypatch.syspath_prepend(str(ROOT / "examples" / example))
        made.extend(["deployments", name])
        __import__(name)
        return sys.modules[name]

    yield load
    for name in made:
        sys.modules.pop(name, None)


@pytest.fixture
def async_platform(modules: Callable[[str, str], ModuleType]) -> tuple[Pool, httpx.AsyncClient]:
    worker, web = modules("starlette-arq", "worker"), modules("starlette-arq", "web")
    table = sys.modules["deployments"].Deployments()
    pool = Pool({"deployments": table})
    pool.functions = {function.__name__: function for function in worker.WorkerSettings.functions}
    transport = InProcess(web.web(table, pool))
    return pool, httpx.AsyncClient(transport=transport, base_url="http://platform")


def pushed(folder: Path, dockerfile: str, branch: str = "main") -> dict[str, str]:
    request(folder, dockerfile)
    return {"project": "acme/web", "branch": branch, "checkout": str(folder)}


async def test_a_push_becomes_a_running_image_with_its_log(
    plane: Stage, tmp_path: Path, async_platform: tuple[Pool, httpx.AsyncClient]
) -> None:
    pool, http = async_platform
    pool.context["builder"] = RoutedImageBuilder(executor(plane))

    made = (await http.post("/deployments", json=pushed(tmp_path / "src", EXPOSING))).json()["id"]
    await pool.jobs[made]
    shown = (await http.get(f"/deployments/{made}")).json()

    assert shown["status"] == "running", shown
    assert shown["port"] == "8080/tcp"
    assert shown["image"].startswith(f"127.0.0.1:{plane.port}/acme/web@sha256:")
    log = (await http.get(f"/deployments/{made}/log")).content
    assert log.count(b"hello from the build") >= 1
    assert (await http.get(f"/deployments/{made}/log", params={"offset": 5})).content == log[5:]
    await http.aclose()


async def test_a_broken_push_shows_its_lines_and_a_newer_one_replaces_an_older(
    plane: Stage, tmp_path: Path, async_platform: tuple[Pool, httpx.AsyncClient]
) -> None:
    pool, http = async_platform
    pool.context["builder"] = RoutedImageBuilder(executor(plane))

    slow = pushed(tmp_path / "slow", DOCKERFILE + SLEEP)
    older = (await http.post("/deployments", json=slow)).json()["id"]
    await _building(http, older)
    newer = (await http.post("/deployments", json=pushed(tmp_path / "new", BROKEN))).json()["id"]
    await asyncio.gather(pool.jobs[older], pool.jobs[newer])

    replaced = (await http.get(f"/deployments/{older}")).json()
    assert replaced["status"] == "failed"
    assert "replaced by" in replaced["error"][0]
    broken = (await http.get(f"/deployments/{newer}")).json()
    assert broken["status"] == "failed"
    assert any("no-such-file" in line for line in broken["error"])
    await http.aclose()


async def test_aborting_the_job_ends_the_build(
    plane: Stage, tmp_path: Path, async_platform: tuple[Pool, httpx.AsyncClient]
) -> None:
    pool, http = async_platform
    pool.context["builder"] = RoutedImageBuilder(executor(plane))
    slow = pushed(tmp_path / "src", DOCKERFILE + SLEEP)
    made = (await http.post("/deployments", json=slow)).json()["id"]
    await _building(http, made)

    assert (await http.delete(f"/deployments/{made}")).json()["status"] == "aborted"

    async with plane.client() as owner:
        [view] = (await owner.builds()).builds
        assert view.cancel_requested
    await http.aclose()


async def _building(http: httpx.AsyncClient, deployment: str) -> None:
    async def seen() -> bool:
        return "building" in (await http.get(f"/deployments/{deployment}")).text

    await eventually(seen, within=60, what=f"{deployment} is being built")


async def test_a_control_plane_that_is_away_is_tried_again_later(
    tmp_path: Path, async_platform: tuple[Pool, httpx.AsyncClient]
) -> None:
    class Away(ScriptedExecutor):
        async def start(self, request: BuildRequest, policy: object) -> Any:
            raise RouterUnavailableError("no answer")

    pool, http = async_platform
    pool.context["builder"] = RoutedImageBuilder(Away())

    made = (await http.post("/deployments", json=pushed(tmp_path / "src", EXPOSING))).json()["id"]
    await pool.jobs[made]

    assert pool.deferred == [(made, 30)]
    assert (await http.get(f"/deployments/{made}")).json()["status"] == "trying again: no answer"
    await http.aclose()


# Django and Celery.


class Again(Exception):
    """What Celery raises to run a task again."""


class BoundTask:
    """The `self` of a bound Celery task."""

    def retry(self, *, exc: Exception, countdown: float) -> Again:
        return Again(f"{type(exc).__name__} in {countdown} s")


def celery() -> ModuleType:
    """Return what the example uses of Celery: a decorator that binds a task to itself."""

    def shared_task(**options: Any) -> Callable[[Any], Any]:
        assert options["bind"]
        return lambda function: lambda *arguments: function(BoundTask(), *arguments)

    stand_in = ModuleType("celery")
    stand_in.shared_task = shared_task  # type: ignore[attr-defined]
    return stand_in


@pytest.fixture
def tasks(
    plane: Stage,
    tmp_path: Path,
    modules: Callable[[str, str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
) -> ModuleType:
    monkeypatch.setitem(sys.modules, "celery", celery())
    monkeypatch.setenv("PLATFORM_DATABASE", str(tmp_path / "platform.db"))
    monkeypatch.setenv("PIERHEAD_URL", plane.url)
    monkeypatch.setenv("PIERHEAD_TOKEN", plane.token)
    return modules("django-celery", "tasks")


async def test_a_task_without_a_loop_builds_and_a_second_run_of_it_builds_nothing_new(
    plane: Stage, tmp_path: Path, tasks: ModuleType
) -> None:
    request(tmp_path / "src", EXPOSING)
    made = tasks.deployments.add("acme/web", tmp_path / "src")

    await asyncio.to_thread(tasks.deploy, made)
    first, log = tasks.deployments.load(made), tasks.deployments.log(made)
    await asyncio.to_thread(tasks.deploy, made)

    assert first["status"] == "built"
    assert "@sha256:" in first["image"]
    assert b"hello from the build" in log
    assert (tasks.deployments.load(made), tasks.deployments.log(made)) == (first, log)
    async with plane.client() as owner:
        assert len((await owner.builds()).builds) == 1


async def test_a_task_whose_build_fails_says_why_and_one_whose_plane_is_gone_runs_again(
    plane: Stage, tmp_path: Path, tasks: ModuleType
) -> None:
    request(tmp_path / "src", BROKEN)
    made = tasks.deployments.add("acme/web", tmp_path / "src")

    await asyncio.to_thread(tasks.deploy, made)
    await plane.plane.stop()

    failed = tasks.deployments.load(made)
    assert failed["status"] == "failed"
    assert "no-such-file" in failed["error"]
    later = tasks.deployments.add("acme/web", tmp_path / "src")
    with pytest.raises(Again, match="RouterUnavailableError in 30 s"):
        await asyncio.to_thread(tasks.deploy, later)
