"""Which registries the images of a Dockerfile are of, and what buildah is told of them."""

import json
import tomllib

import pytest

from pierhead.runner.domain.bases import (
    HOSTS_MAX,
    authorization,
    bases_of_stages,
    image_of_the_machine,
    login_file,
    registries_alone,
    registries_conf,
    registries_named,
    registry_of,
)


@pytest.mark.parametrize(
    ("image", "host"),
    [
        ("busybox", "docker.io"),
        ("me/app:1", "docker.io"),
        ("ghcr.io/me/app", "ghcr.io"),
        ("localhost/me/app", "localhost"),
        ("registry:5000/app", "registry:5000"),
        ("scratch", "docker.io"),
    ],
)
def test_the_first_part_of_a_name_is_a_registry_if_it_looks_like_one(image: str, host: str) -> None:
    assert registry_of(image) == host


@pytest.mark.parametrize(
    ("dockerfile", "hosts"),
    [
        ("FROM busybox", ()),
        ("from --platform=$BUILDPLATFORM ghcr.io/me/app AS x", ("ghcr.io",)),
        ("ARG W=a.io\nFROM ${W}/x", ("a.io",)),
        ("ARG R\nFROM $R/x", ("given.io",)),
        ("ARG R=a.io\nFROM $R/x", ("given.io",)),
        ("ARG NONE\nFROM ${NONE:-b.io}/x", ("b.io",)),
        ("ARG E=\nFROM ${E:-c.io}/x\nFROM ${E-d.io}/x", ("c.io",)),
        ("ARG V=1\nFROM ${V:+e.io}/x", ("e.io",)),
        ("ARG A='f.io'\nARG B=$A/team\nFROM $B/x", ("f.io",)),
        ("FROM x\nCOPY --chown=1 --from=g.io/x /a /b", ("g.io",)),
        ("FROM x\nRUN --mount=type=cache,target=/c --mount=type=bind,from=h.io/x,target=/m ls",
         ("h.io",)),
        ("FROM x\nRUN echo --from=no.io/x", ()),
        ("FROM x\nCOPY --from=0 /a /b", ()),
        ("FROM i.io/x \\\n  AS y", ("i.io",)),
        ("# FROM no.io/x\nFROM $UNKNOWN/x", ()),
        ("FROM \"j.io\"\nFROM k.io]/x", ()),
        ("", ()),
    ],
)  # fmt: skip
def test_all_registries_of_a_dockerfile_are_found(dockerfile: str, hosts: tuple[str, ...]) -> None:
    assert registries_named(dockerfile, {"R": "given.io"}) == ("docker.io", *hosts)


def test_there_is_an_end_to_registries() -> None:
    text = "\n".join(f"FROM r{number}.io/x" for number in range(1000))
    assert len(registries_named(text, {})) == HOSTS_MAX


def test_each_registry_is_a_folder_at_the_relay() -> None:
    conf = tomllib.loads(registries_conf(["docker.io", "r.example:5000"], "127.0.0.1:7"))
    assert [(one["prefix"], one["location"]) for one in conf["registry"]] == [
        ("docker.io", "127.0.0.1:7/r0"),
        ("r.example:5000", "127.0.0.1:7/r1"),
    ]
    assert all(one["insecure"] for one in conf["registry"])


def test_the_login_file_holds_what_the_relay_wants_to_see() -> None:
    entry = json.loads(login_file("127.0.0.1:7", "pw"))["auths"]["127.0.0.1:7"]
    assert authorization("pw") == f"Basic {entry['auth']}"


@pytest.mark.parametrize(
    ("dockerfile", "image"),
    [
        ("FROM dir:/usr\n", "dir:/usr"),
        ("FROM scratch\nCOPY --from=oci-archive:/a.tar /x /x\n", "oci-archive:/a.tar"),
        ("FROM scratch\nRUN --mount=from=oci:/a,target=/a true\n", "oci:/a"),
        ("ARG A=dir:/usr\nFROM ${A}\n", "dir:/usr"),
        # Stages may be called so, and repositories.
        ("FROM scratch AS dir\nFROM scratch\nCOPY --from=dir /x /x\n", None),
        ("FROM scratch AS oci\nFROM oci\n", None),
        ("FROM localhost:5000/oci:1\nCOPY --from=ghcr.io/me/dir:2 /x /x\n", None),
    ],
)
def test_what_is_named_as_a_file_of_the_machine_is_found(
    dockerfile: str, image: str | None
) -> None:
    assert image_of_the_machine(dockerfile, {}) == image


def test_the_machines_own_policy_goes_on_to_hold_for_registries() -> None:
    own = {"default": [{"type": "reject"}], "transports": {"docker": {"ghcr.io": []}, "dir": {}}}

    made = json.loads(registries_alone(json.dumps(own)))

    assert made["default"] == own["default"]
    assert made["transports"]["docker"] == {"ghcr.io": []}
    assert made["transports"]["dir"] == made["transports"]["oci"] == {"": [{"type": "reject"}]}
    assert json.loads(registries_alone(None))["default"] == [{"type": "insecureAcceptAnything"}]
    assert registries_alone("not json") == "not json"


def test_a_stage_begins_with_what_stands_there_and_with_no_variable() -> None:
    dockerfile = (
        "ARG WHO=mid\nFROM scratch AS base\nCOPY --from=alpine /a /\n"
        "FROM --platform=linux/arm64 base AS mid\nFROM ${WHO} AS last\n"
    )
    assert bases_of_stages(dockerfile, {}) == ("scratch", "base", "mid")
    assert bases_of_stages(dockerfile, {"WHO": "base"}) == ("scratch", "base", "base")
