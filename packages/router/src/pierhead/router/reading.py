"""From what the wire says of a build to what an importer sees. Pure."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, Literal, assert_never

from pierhead.protocol import build as wire
from pierhead.protocol import result
from pierhead.protocol.meta import ServerCapabilities
from pierhead.protocol.platform import PlatformText
from pierhead.router.events import (
    Cursor,
    Event,
    FellBack,
    Finished,
    Log,
    Notice,
    Progress,
    Queued,
    Requeued,
    Started,
    Step,
)
from pierhead.router.image import (
    Artifact,
    CacheUse,
    Digest,
    Healthcheck,
    ImageConfig,
    ImageInfo,
    ScanMissing,
    ScanPending,
    ScanReport,
    Timings,
)
from pierhead.router.outcome import (
    Built,
    Cancelled,
    Eligible,
    Failed,
    NotBuilt,
    Outcome,
    Rejection,
)
from pierhead.router.place import Capabilities, RunnerInfo

_MOVING: Final[dict[str, Literal["push", "extract", "scan"]]] = {
    "pushing": "push",
    "extracting": "extract",
    "scanning": "scan",
}


def event_of(told: wire.Event) -> Event | None:
    """Return the event for one of the wire; none when an importer has nothing to learn from it."""
    cursor = Cursor(told.cursor)
    match told:
        case wire.Queued():
            who = rejected(told.rejections)
            seconds = told.expected_wait_seconds
            return Queued(
                position=told.position,
                expected_wait=timedelta(seconds=seconds) if seconds is not None else None,
                rejected=who,
                platform=told.platform,
                cursor=cursor,
            )
        case wire.Started():
            executor: Literal["here", "runners"] = "here" if told.here else "runners"
            return Started(
                runner=told.runner,
                executor=executor,
                attempt=told.attempt,
                platform=told.platform,
                cursor=cursor,
            )
        case wire.PhaseChanged(phase=phase):
            if phase not in _MOVING:
                return None
            return Progress(
                phase=_MOVING[phase],
                done_bytes=0,
                total_bytes=None,
                platform=told.platform,
                cursor=cursor,
            )
        case wire.Step():
            took = timedelta(milliseconds=told.took_ms) if told.took_ms is not None else None
            return Step(
                name=told.name, state=told.state, took=took, platform=told.platform, cursor=cursor
            )
        case wire.Log():
            return Log(data=told.data, offset=told.offset, platform=told.platform, cursor=cursor)
        case wire.Requeued():
            return Requeued(
                attempt=told.attempt, reason=told.reason, platform=told.platform, cursor=cursor
            )
        case wire.FellBack():
            return FellBack(reason=told.reason, to="here", platform=told.platform, cursor=cursor)
        case wire.Notice():
            return Notice(
                slug="notice", text=told.text, hint=told.hint, platform=told.platform, cursor=cursor
            )
        case wire.CancelRequested():
            text = f"{told.by} asked for the end: {told.reason}"
            return Notice(slug="cancel-requested", text=text, platform=told.platform, cursor=cursor)
        case wire.Finished():
            return Finished(outcome=outcome_of(told.build), cursor=cursor)
        case _:
            assert_never(told)


def rejected(rejections: Sequence[wire.Rejection]) -> tuple[Rejection, ...]:
    """Return who does not take a build, and why."""
    return tuple(Rejection(runner=one.runner, reason=one.reason) for one in rejections)


def reasons(why: wire.Why) -> tuple[Rejection | Eligible, ...]:
    """Return who would take a build, then who would not."""
    return (*(Eligible(runner=name) for name in why.eligible), *who_refuses(why))


def who_refuses(why: wire.Why) -> tuple[Rejection, ...]:
    """Return who does not take a build; of several platforms, those that nobody takes count."""
    untaken = (part for part in why.platforms if not part.eligible)
    each = (one for part in untaken for one in part.rejections)
    return rejected(tuple(dict.fromkeys((*why.rejections, *each))))


def outcome_of(view: wire.BuildView) -> Outcome:
    """Return how a build ended.

    Raises:
        ValueError: it has not.
    """
    match view.state:
        case "succeeded":
            return Built(image=image_of(view))
        case "cancelled":
            return _cancelled(view)
        case "failed":
            return _failed(view)
        case _:
            raise ValueError(f"{view.id} is {view.state}, which is not an end")


def _cancelled(view: wire.BuildView) -> Cancelled:
    proof = view.result.stop_proof if view.result else None
    never_ran = view.fence == 0 and view.started_at is None  # a parent has no fence
    return Cancelled(
        by=view.cancelled_by or "somebody",
        reason=view.cancel_reason or "",
        proven=never_ran or (proof is not None and proof.clean),
    )


def _failed(view: wire.BuildView) -> Failed | NotBuilt:
    failure = view.result.failure if view.result else None
    if failure is None:
        return NotBuilt(reason="runners-lost", detail="nobody said why it failed")
    match failure.cause:
        case "no-runner" | "runners-lost" | "waited-too-long" | "integrity" as reason:
            return NotBuilt(reason=reason, detail=failure.message)
        case "runner":
            return NotBuilt(reason="runners-lost", detail=failure.message)
        case cause:
            return Failed(
                cause=cause,
                step=failure.step,
                exit_code=failure.exit_code,
                extract=failure.extract,
                message=failure.message,
                hint=failure.hint,
            )


def image_of(view: wire.BuildView) -> ImageInfo:
    """Return the image of a build that succeeded."""
    envelope = view.result
    assert envelope is not None
    assert view.reference is not None
    assert envelope.manifest_digest is not None
    assert envelope.config_digest is not None
    first = envelope.platforms[0]
    return ImageInfo(
        build_id=view.id,
        reference=view.reference,
        digest=Digest(envelope.manifest_digest),
        config_digest=Digest(envelope.config_digest),
        config=_config(envelope.config or result.ImageConfig(), first.platform),
        platforms=tuple(image.platform for image in envelope.platforms),
        by_platform={one.platform: Digest(one.manifest_digest) for one in envelope.platforms},
        size_bytes=sum(image.size_bytes for image in envelope.platforms),
        layers=tuple(map(Digest, first.layers)),
        diff_ids=tuple(map(Digest, first.diff_ids)),
        created=first.created,
        author=first.author,
        artifacts={one.name: _artifact(one) for one in envelope.artifacts},
        scan=_scan(envelope.scan),
        built_on=view.runner or "",
        attempts=view.attempts,
        timings=_timings(envelope.timings),
        peak_memory_bytes=envelope.peak_memory_bytes,
        cache=CacheUse(steps=envelope.cache.steps, cached=envelope.cache.cached),
        warnings=envelope.warnings,
    )


def _config(config: result.ImageConfig, platform: PlatformText) -> ImageConfig:
    system, _, architecture = platform.partition("/")
    architecture, _, variant = architecture.partition("/")
    return ImageConfig(
        exposed_ports=config.exposed_ports,
        working_dir=config.working_dir,
        user=config.user,
        env=dict(entry.partition("=")[::2] for entry in config.env),
        entrypoint=config.entrypoint or (),
        cmd=config.cmd or (),
        labels=config.labels,
        volumes=config.volumes,
        stop_signal=config.stop_signal,
        healthcheck=_healthcheck(config.healthcheck),
        on_build=config.on_build,
        shell=config.shell,
        architecture=architecture,
        variant=variant or None,
        os=system,
    )


def _healthcheck(check: result.Healthcheck | None) -> Healthcheck | None:
    if check is None:
        return None
    return Healthcheck(
        test=check.test,
        interval=timedelta(microseconds=check.interval_ns / 1000),
        timeout=timedelta(microseconds=check.timeout_ns / 1000),
        start_period=timedelta(microseconds=check.start_period_ns / 1000),
        retries=check.retries,
    )


def _scan(scan: result.Scan) -> ScanMissing | ScanPending | ScanReport:
    match scan:
        case result.ScanMissing(why=why):
            return ScanMissing(why=why)
        case result.ScanPending():
            return ScanPending()
        case result.ScanReport(scanner=scanner, findings=findings):
            return ScanReport(scanner=scanner, findings=findings)
        case _:
            assert_never(scan)


def _artifact(artifact: result.Artifact) -> Artifact:
    return Artifact(
        name=artifact.name,
        media_type=artifact.media_type,
        digest=Digest(artifact.digest),
        size_bytes=artifact.size_bytes,
    )


def _timings(timings: result.Timings) -> Timings:
    return Timings(
        fetching=timedelta(milliseconds=timings.fetching_ms),
        building=timedelta(milliseconds=timings.building_ms),
        pushing=timedelta(milliseconds=timings.pushing_ms),
        total=timedelta(milliseconds=timings.total_ms),
    )


def capabilities_of(told: ServerCapabilities) -> Capabilities:
    """Return what a control plane can build."""
    runners = tuple(
        RunnerInfo(
            name=runner.name,
            online=runner.online,
            here=runner.here,
            platforms=runner.capabilities.platforms if runner.capabilities else (),
            slots=runner.capabilities.slots if runner.capabilities else 0,
            builds=len(runner.builds),
        )
        for runner in told.runners
    )
    online = [runner for runner in runners if runner.online]
    kinds = {"here" if runner.here else "runners" for runner in online}
    return Capabilities(
        registry=told.registry,
        runners=runners,
        platforms=tuple(sorted({name for runner in online for name in runner.platforms})),
        executors=tuple(sorted(kinds, reverse=True)),
        context_bytes_max=told.limits.context_bytes,
    )
