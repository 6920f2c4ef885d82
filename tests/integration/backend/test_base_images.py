"""Base images by the relay, in builds with and without isolation, and without any network."""

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pierhead.protocol.digest import digest_of
from pierhead.protocol.errors import Unavailable
from pierhead.protocol.problem import problem
from pierhead.runner.domain.bases import BaseRefusal
from pierhead.runner.ports import BaseAnswer, BaseAsk, Broken, Built
from tests.integration.backend.conftest import Attempt, Bench
from tests.integration.router.stage import MANIFEST_TYPE, TinyImage, tiny_image

STEPS = "FROM r.example:5000/me/base:1\nCOPY --from=base /bin/busybox /busybox\n"


@dataclass
class OneImage:
    """A control plane that has one image."""

    image: TinyImage = field(default_factory=lambda: tiny_image("base"))
    asked: list[BaseAsk] = field(default_factory=list)

    @asynccontextmanager
    async def ask(self, wanted: BaseAsk) -> AsyncIterator[BaseAnswer]:
        self.asked.append(wanted)
        there: dict[str, bytes] = {
            digest_of(part): part for part in (self.image.config, self.image.layer)
        }
        there["1"] = self.image.manifest
        data = there.get(wanted.reference)
        if data is None or wanted.name != "me/base":
            said = BaseRefusal(image=wanted.name, message="r.example has none", hint="look again")
            yield BaseAnswer(status=404, headers={}, refusal=said)
            return
        kind = MANIFEST_TYPE if wanted.kind == "manifests" else "application/octet-stream"
        headers = {"content-length": str(len(data)), "content-type": kind}
        yield BaseAnswer(status=200, headers=headers, chunks=_once(data))


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


def with_bases(attempt: Attempt, bases: OneImage) -> Attempt:
    attempt.order = replace(attempt.order, bases=bases)
    return attempt


@pytest.mark.parametrize("isolated", [True, False])
async def test_a_build_has_its_base_image_by_the_relay(bench: Bench, isolated: bool) -> None:
    if not isolated:
        bench.backend._trial._lacking = ["namespaces, say"]
    bases = OneImage()
    attempt = with_bases(bench.attempt(STEPS), bases)
    built = await attempt.run()
    proof = await attempt.stop()
    assert isinstance(built, Built), (built, attempt.output.decode())
    assert proof.clean, proof
    assert {one.host for one in bases.asked} == {"r.example:5000"}
    assert digest_of(bases.image.layer) in {one.reference for one in bases.asked}


async def test_what_the_control_plane_says_is_what_people_are_told(bench: Bench) -> None:
    bases = OneImage()
    attempt = with_bases(bench.attempt("FROM r.example:5000/me/nothing\n"), bases)
    broken = await attempt.run()
    await attempt.stop()
    assert isinstance(broken, Broken)
    assert broken.failure.cause == "base-image"
    assert broken.failure.message == (
        "the base image r.example:5000/me/nothing:latest is not to be had: r.example has none"
    )
    assert broken.failure.hint == "look again"


@dataclass
class Partly(OneImage):
    """A control plane that refuses, or breaks off in, a blob of the image."""

    part: str = ""
    cut: bool = False

    @asynccontextmanager
    async def ask(self, wanted: BaseAsk) -> AsyncIterator[BaseAnswer]:
        if wanted.reference != self.part:
            async with super().ask(wanted) as answer:
                yield answer
        elif self.cut:
            headers = {"content-length": "5000", "content-type": "application/octet-stream"}
            yield BaseAnswer(status=200, headers=headers, chunks=_broken())
        else:
            said = BaseRefusal(image="r.example:5000/me/base", message="it lied", hint="ask there")
            yield BaseAnswer(status=403, headers={}, refusal=said)


async def _broken() -> AsyncIterator[bytes]:
    yield b"x" * 50
    raise Unavailable(problem("dependency-unavailable", "it lied", hint="ask there"))


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("part", ["layer", "config"])
@pytest.mark.parametrize(
    "dockerfile",
    [
        "FROM r.example:5000/me/base:1\n",
        "FROM scratch\nCOPY --from=r.example:5000/me/base:1 /bin/busybox /busybox\n",
    ],
)
async def test_a_base_image_that_is_not_had_whole_is_told_as_one(
    bench: Bench, dockerfile: str, part: str, cut: bool
) -> None:
    bases = Partly(cut=cut)
    bases.part = digest_of(bases.image.layer if part == "layer" else bases.image.config)
    attempt = with_bases(bench.attempt(dockerfile), bases)
    broken = await attempt.run()
    await attempt.stop()
    assert isinstance(broken, Broken)
    assert broken.failure.cause == "base-image", broken.failure
    assert broken.failure.message.startswith("the base image r.example:5000/me/base")
    assert broken.failure.message.endswith(" is not to be had: it lied")
    assert broken.failure.hint == "ask there"


async def test_what_the_machine_has_is_used_when_nobody_gives_it(bench: Bench) -> None:
    first = with_bases(bench.attempt("FROM scratch\nCOPY busybox /mine\n"), OneImage())
    assert isinstance(await first.run(), Built)
    await first.stop()
    bases = OneImage()
    second = with_bases(
        bench.attempt("FROM localhost/pierhead/last:latest\nCOPY busybox /more\n"), bases
    )
    assert isinstance(await second.run(), Built), second.output.decode()
    await second.stop()
    # buildah asks whether there is a newer one.
    assert {one.host for one in bases.asked} <= {"localhost"}


@pytest.fixture
def of_the_machine() -> Iterator[Path]:
    """An image in a folder that a build's root has, too, as `skopeo copy dir:` writes one."""
    image, folder = tiny_image("base"), Path(f"/usr/lib/pierhead-test-{os.getpid()}")
    folder.mkdir()
    (folder / "version").write_text("Directory Transport Version: 1.1\n")
    (folder / "manifest.json").write_bytes(image.manifest)
    for part in (image.config, image.layer):
        (folder / digest_of(part).removeprefix("sha256:")).write_bytes(part)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("isolated", [True, False])
@pytest.mark.parametrize(
    "steps",
    [
        "FROM dir:{}\nCOPY --from=base /bin/busybox /busybox\n",
        "FROM scratch\nCOPY --from=dir:{} /bin/busybox /busybox\n",
        "FROM oci-archive:{}/manifest.json\n",
        "FROM docker-archive:{}/manifest.json\n",
        "FROM oci:{}\n",
        "FROM tarball:{}/manifest.json\n",
        "FROM sif:{}/manifest.json\n",
        # What only buildah can tell: it is refused by its policy.
        "FROM ${{A:-${{B:-dir}}}}:{}\n",
        'FROM "dir":{}\n',
    ],
)
async def test_no_file_of_the_machine_is_a_base_image(
    bench: Bench, of_the_machine: Path, steps: str, isolated: bool
) -> None:
    if not isolated:
        bench.backend._trial._lacking = ["namespaces, say"]
    attempt = bench.attempt(steps.format(of_the_machine))
    broken = await attempt.run()
    proof = await attempt.stop()

    assert isinstance(broken, Broken), attempt.output.decode()
    assert broken.failure.cause == "base-image", (broken.failure, attempt.output.decode())
    assert broken.failure.hint == "only base images of registries and earlier stages can be had"
    assert proof.clean
