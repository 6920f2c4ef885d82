"""The command lines of buildah, as golden lists; a wrong word here is a wrong image."""

import pytest

from pierhead.protocol.plan import Plan
from pierhead.runner.domain.invocation import (
    ARGUMENT_BYTES_MAX,
    Store,
    build_command,
    refusal,
)

STORE = Store.below("/s/slot-0")
PLACE = [
    "buildah", "--root", "/s/slot-0/storage", "--runroot", "/s/slot-0/run",
    "--storage-driver", "overlay",
]  # fmt: skip
ALWAYS = ["--layers", "--format", "docker", "--ignorefile", "/s/slot-0/empty-ignore-file"]
ALWAYS += ["--signature-policy", "/s/slot-0/policy.json"]
END = ["-t", "localhost/pierhead/last:latest", "-f", "/c/Dockerfile", "/c"]
ISOLATED = [
    "--isolation", "oci", "--runtime", "/run/pierhead/runtime",
    "--runtime-flag", "root=/s/slot-0/runc", "--cgroup-parent", "/step",
]  # fmt: skip


def test_an_isolated_build_runs_its_steps_in_runc_below_its_own_cgroup() -> None:
    expected = [
        *PLACE,
        "bud",
        *ALWAYS,
        *ISOLATED,
        "--network",
        "host",
        "--timestamp",
        "315532800",
        *END,
    ]

    assert build_command(STORE, Plan(), "/c", cgroup="/step") == expected


def test_without_isolation_there_is_no_other_network_than_the_machines() -> None:
    expected = [
        *PLACE, "bud", *ALWAYS, "--isolation", "chroot", "--network", "host",
        "--timestamp", "315532800",
        *END,
    ]  # fmt: skip

    assert build_command(STORE, Plan(network="none"), "/c", cgroup=None) == expected


def test_a_build_without_network_takes_it_from_the_steps_only() -> None:
    command = build_command(STORE, Plan(network="none"), "/c", cgroup="/step")

    assert command[command.index("--network") + 1] == "none"


def test_everything_a_plan_says_is_an_argument_in_a_fixed_order() -> None:
    plan = Plan(
        dockerfile="docker/Dockerfile.web",
        target="web",
        build_args={"B": "2", "A": "with space; $(and) 'more'"},
        labels={"l": "1"},
        no_cache=True,
        pull=True,
        add_hosts=("db:10.0.0.1", "six:fd00::1"),
        shm_bytes=256 * 2**20,
        ulimits=("nofile=1024:4096",),
        source_date_epoch=1_700_000_000,
    )

    command = build_command(STORE, plan, "/c", cgroup="/step")

    assert command[command.index("--timestamp") :] == [
        "--timestamp", "1700000000", "--no-cache", "--pull=always", "--add-host", "db:10.0.0.1",
        "--add-host", "six:fd00::1", "--shm-size", "262144k", "--ulimit", "nofile=1024:4096",
        "--target", "web",
        "--build-arg", "A=with space; $(and) 'more'", "--build-arg", "B=2", "--label", "l=1",
        "-t", "localhost/pierhead/last:latest", "-f", "/c/docker/Dockerfile.web", "/c",
    ]  # fmt: skip


@pytest.mark.parametrize(("said", "taken"), [(None, "315532800"), (0, "0"), (7, "7")])
def test_times_in_the_image_are_fixed(said: int | None, taken: str) -> None:
    command = build_command(STORE, Plan(source_date_epoch=said), "/c", cgroup=None)

    assert command[command.index("--timestamp") + 1] == taken


@pytest.mark.parametrize(
    "plan",
    [
        Plan(dockerfile="a\0b"),
        Plan(target="a\0b"),
        Plan(build_args={"a\0": "b"}),
        Plan(labels={"a": "b\0"}),
        Plan(build_args={f"A{number}": "x" * 32_000 for number in range(20)}),
    ],
)
def test_a_plan_that_can_be_no_command_line_fails_and_does_not_break_the_runner(
    plan: Plan,
) -> None:
    refused = refusal(plan)

    assert refused is not None
    assert refused.cause == "dockerfile"


def test_a_plan_of_the_largest_size_is_taken() -> None:
    values = {f"A{number:03}": "x" * 1020 for number in range(256)}
    plan = Plan(build_args=values, labels={"l": "x" * 32_000})

    assert sum(map(len, values.values())) < ARGUMENT_BYTES_MAX
    assert refusal(plan) is None


def test_secrets_are_named_and_read_from_memory() -> None:
    command = build_command(STORE, Plan(secrets=("key", "npm")), "/c", cgroup="/step")

    given = [command[at + 1] for at, word in enumerate(command) if word == "--secret"]
    assert given == [
        "id=key,type=file,src=/run/pierhead-secrets/key",
        "id=npm,type=file,src=/run/pierhead-secrets/npm",
    ]
