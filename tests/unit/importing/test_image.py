"""From an envelope to an image, and from an image to what `docker inspect` says."""

from datetime import timedelta
from typing import Any

import pytest

from pierhead.protocol import build as wire
from pierhead.protocol import result
from pierhead.protocol.ids import BuildId
from pierhead.router import (
    BuildPolicy,
    BuildRequest,
    Built,
    Cancelled,
    DirectoryContext,
    Failed,
    FellBack,
    Healthcheck,
    ImageConfig,
    NotBuilt,
    Notice,
    Progress,
    RefusedError,
    Scan,
    Secret,
    Want,
)
from pierhead.router.image import _config
from pierhead.router.reading import event_of, outcome_of
from pierhead.router.wanted import check, submit_of, why_of

DIGEST = "sha256:" + "ab" * 32
LAYER = "sha256:" + "cd" * 32
ENVELOPE = result.Envelope(
    outcome="succeeded",
    manifest_digest=DIGEST,
    config_digest=LAYER,
    platforms=(
        result.PlatformImage(
            platform="linux/arm/v7",
            manifest_digest=DIGEST,
            config_digest=LAYER,
            size_bytes=7,
            layers=(LAYER,),
            diff_ids=(DIGEST,),
            created="2026-01-02T03:04:05Z",
        ),
    ),
    config=result.ImageConfig(
        env=("PATH=/bin", "EMPTY=", "A=b=c"),
        entrypoint=("/run",),
        exposed_ports=("80/tcp",),
        healthcheck=result.Healthcheck(test=("CMD", "/ok"), interval_ns=1_500_000_000, retries=2),
    ),
    timings=result.Timings(building_ms=1500),
    cache=result.CacheUse(steps=4, cached=3),
    peak_memory_bytes=11,
)


def view(state: wire.StateName, **facts: Any) -> wire.BuildView:
    usual: dict[str, Any] = {
        "id": BuildId("b_1"),
        "project": "acme/web",
        "state": state,
        "created_at": "2026-01-02T03:04:05.000Z",
        "runner": "desktop",
        "fence": 1,
    }
    return wire.BuildView(**{**usual, **facts})


def failed(cause: result.Cause, **said: Any) -> wire.BuildView:
    failure = result.Failure(cause=cause, message="it broke", **said)
    return view("failed", result=result.Envelope(outcome="failed", failure=failure))


def test_an_image_brings_all_that_its_envelope_says() -> None:
    outcome = outcome_of(view("succeeded", result=ENVELOPE, reference=f"h:1/acme/web@{DIGEST}"))

    assert isinstance(outcome, Built)
    image = outcome.image
    assert (image.reference, image.digest, image.config_digest) == (
        f"h:1/acme/web@{DIGEST}",
        DIGEST,
        LAYER,
    )
    assert (image.config.os, image.config.architecture, image.config.variant) == (
        "linux",
        "arm",
        "v7",
    )
    assert image.config.env == {"PATH": "/bin", "EMPTY": "", "A": "b=c"}
    assert image.config.healthcheck == Healthcheck(
        test=("CMD", "/ok"), interval=timedelta(seconds=1.5), retries=2
    )
    assert image.timings.building == timedelta(seconds=1.5)
    assert (image.cache.cached, image.peak_memory_bytes, image.built_on) == (3, 11, "desktop")
    inspected = image.to_docker_inspect()
    assert inspected["Id"] == LAYER
    assert inspected["RootFS"]["Layers"] == [DIGEST]
    assert inspected["Variant"] == "v7"


def test_what_a_dockerfile_does_not_say_is_null_or_left_out_as_docker_does_it() -> None:
    said = _config(ImageConfig())

    assert said["Env"] is said["Cmd"] is said["Entrypoint"] is said["Labels"] is None
    assert said["Volumes"] is said["OnBuild"] is None
    assert not {"ExposedPorts", "Healthcheck", "StopSignal", "Shell"} & said.keys()


def test_a_health_check_is_written_in_nanoseconds() -> None:
    check = Healthcheck(test=("CMD", "/ok"), interval=timedelta(seconds=1.5), retries=2)

    said = _config(ImageConfig(healthcheck=check, shell=("/bin/ash",), stop_signal="SIGINT"))

    assert said["Healthcheck"] == {"Test": ["CMD", "/ok"], "Interval": 1_500_000_000, "Retries": 2}
    assert (said["Shell"], said["StopSignal"]) == (["/bin/ash"], "SIGINT")


@pytest.mark.parametrize(
    "cause",
    ["command", "dockerfile", "out-of-memory", "disk-full", "base-image", "platform", "context"],
)
def test_what_the_users_files_did_is_a_failure(cause: result.Cause) -> None:
    outcome = outcome_of(failed(cause, step="2/3 RUN x", exit_code=1, extract=("x",), hint="y"))

    assert outcome == Failed(
        cause=cause,  # type: ignore[arg-type]
        step="2/3 RUN x",
        exit_code=1,
        extract=("x",),
        message="it broke",
        hint="y",
    )


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        ("no-runner", "no-runner"),
        ("runners-lost", "runners-lost"),
        ("waited-too-long", "waited-too-long"),
        ("integrity", "integrity"),
        ("runner", "runners-lost"),
    ],
)
def test_what_is_not_the_users_fault_is_no_failure_of_theirs(
    cause: result.Cause, reason: str
) -> None:
    assert outcome_of(failed(cause)) == NotBuilt(reason=reason, detail="it broke")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "proven"),
    [
        ({"fence": 0}, True),  # it never ran
        ({"result": None}, False),  # its runner fell silent
        ({"result": result.Envelope(outcome="cancelled")}, False),
        (
            {"result": result.Envelope(outcome="cancelled", stop_proof=result.StopProof())},
            True,
        ),
        (
            {
                "result": result.Envelope(
                    outcome="cancelled", stop_proof=result.StopProof(mounts=("/x",))
                )
            },
            False,
        ),
    ],
)
def test_a_stop_is_proven_by_whoever_looked_afterwards(facts: dict[str, Any], proven: bool) -> None:
    seen = view("cancelled", cancelled_by="the owner", cancel_reason="enough", **facts)

    assert outcome_of(seen) == Cancelled(by="the owner", reason="enough", proven=proven)


def test_phases_that_move_bytes_are_progress_and_others_are_nothing_to_tell() -> None:
    pushing = event_of(wire.PhaseChanged(cursor="3.0", phase="pushing"))

    assert isinstance(pushing, Progress)
    assert (pushing.phase, pushing.cursor) == ("push", "3.0")
    assert event_of(wire.PhaseChanged(cursor="3.0", phase="building")) is None


def test_a_wish_to_cancel_and_a_fall_back_are_told() -> None:
    wish = event_of(wire.CancelRequested(cursor="3.0", by="the owner", reason="enough"))
    here = event_of(wire.FellBack(cursor="4.0", reason="desktop is offline"))

    assert isinstance(wish, Notice)
    assert wish.slug == "cancel-requested"
    assert isinstance(here, FellBack)
    assert (here.to, here.reason) == ("here", "desktop is offline")


# What is asked.

REQUEST = BuildRequest(context=DirectoryContext(path="."), project="acme/web")  # type: ignore[arg-type]


def changed(**options: Any) -> BuildRequest:
    return BuildRequest(context=REQUEST.context, project="acme/web", **options)


@pytest.mark.parametrize(
    ("request_", "policy", "named"),
    [
        (changed(platforms=tuple(f"linux/a{n}" for n in range(5))), BuildPolicy(), "too many"),
        (changed(want=(Want(name="site", path="/srv"),)), BuildPolicy(), "want"),
        (changed(scan=Scan.GATE), BuildPolicy(), "scan=gate"),
        (changed(scan="gate"), BuildPolicy(), "scan=gate"),
        (changed(scan="hard"), BuildPolicy(), "scan is 'hard'"),
        (changed(scan=None), BuildPolicy(), "scan is None"),
        (REQUEST, BuildPolicy(on="moon"), "on is 'moon'"),  # type: ignore[arg-type]
        (REQUEST, BuildPolicy(if_nobody_can="here"), "if_nobody_can is 'here'"),  # type: ignore[arg-type]
        (REQUEST, BuildPolicy(secret_args="no"), "secret_args is 'no'"),  # type: ignore[arg-type]
        (changed(priority=1), BuildPolicy(), "priority"),
        (REQUEST, BuildPolicy(where="size=large"), "where"),
        (REQUEST, BuildPolicy(on="ci"), "on='ci'"),
        (REQUEST, BuildPolicy(on="nodes"), "on='nodes'"),
        (REQUEST, BuildPolicy(on="local"), "no local builder"),
        (REQUEST, BuildPolicy(here_memory_bytes=1), "here_memory_bytes"),
        (REQUEST, BuildPolicy(if_nobody_can="build-here"), "build-here"),
        (changed(timeout=timedelta(hours=7)), BuildPolicy(), "timeout is 7:00:00"),
        (changed(timeout=timedelta()), BuildPolicy(), "timeout is 0:00:00"),
        (REQUEST, BuildPolicy(patience=timedelta(days=2)), "patience is 2 days"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_name(
    request_: BuildRequest, policy: BuildPolicy, named: str
) -> None:
    with pytest.raises(RefusedError, match=named) as caught:
        check(request_, policy)

    assert caught.value.hint


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (BuildPolicy(), "here"),
        (BuildPolicy(if_nobody_can="build-here-capped"), "here"),
        (BuildPolicy(if_nobody_can="wait"), "wait"),
        (BuildPolicy(if_nobody_can="fail"), "fail"),
        (BuildPolicy(on="runners"), "fail"),
        (BuildPolicy(on="anywhere"), "here"),
    ],
)
def test_a_policy_says_what_happens_when_nobody_can(policy: BuildPolicy, said: str) -> None:
    context = result_context()

    assert submit_of(REQUEST, policy, context, "k").if_nobody == said
    assert why_of(REQUEST, policy).if_nobody == said


def test_a_request_is_submitted_as_it_is() -> None:
    request = changed(
        target="prod",
        args={"A": "b"},
        labels={"l": "v"},
        tags=("1.0",),
        platforms=("linux/arm64",),
        no_cache=True,
        pull=True,
        supersedes="main",
        timeout=timedelta(minutes=2),
    )

    said = submit_of(request, BuildPolicy(patience=timedelta(seconds=9)), result_context(), "k")

    plan = said.plan
    assert (plan.target, plan.build_args, plan.labels) == ("prod", {"A": "b"}, {"l": "v"})
    assert (plan.no_cache, plan.pull, plan.platform, plan.timeout_seconds) == (
        True,
        True,
        "linux/arm64",
        120,
    )
    assert (said.tags, said.supersedes, said.key, said.max_queue_wait_seconds) == (
        ("1.0",),
        "main",
        "k",
        9,
    )


def result_context() -> Any:
    from pierhead.protocol.plan import ContextRef

    return ContextRef(digest=DIGEST, size_bytes=1, unpacked_bytes=1, files=1)


def test_a_secret_in_a_request_is_not_in_its_repr() -> None:
    assert "hunter2" not in repr(changed(secrets={"npm": Secret(b"hunter2")}))
