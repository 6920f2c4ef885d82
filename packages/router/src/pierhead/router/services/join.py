"""What becomes of the images of a build for several platforms when all of its builds have ended.

All or none: with the last child's result, in its transaction, what the children pushed becomes
visible together with an index that names it, and the tags move to the index. If one of them has no
image, what the others pushed is dropped. Until then nobody sees any of it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

import msgspec

from pierhead.protocol.digest import digest_of
from pierhead.protocol.result import (
    BytesMoved,
    CacheUse,
    Envelope,
    Failure,
    PlatformImage,
    StopProof,
    Timings,
)
from pierhead.router.domain.build import State
from pierhead.router.domain.index import Part, index_of
from pierhead.router.domain.manifest import OCI_INDEX
from pierhead.router.domain.naming import attempt_name, reference
from pierhead.router.domain.parent import Parent
from pierhead.router.ports.builds import StoredBuild
from pierhead.router.ports.images import Manifest
from pierhead.router.ports.store import Ledger


def joined(ledger: Ledger, stored: StoredBuild, host: str, now: datetime) -> StoredBuild:
    """Return a parent that has just ended with its result; settle what its children pushed."""
    parent, project = stored.build, stored.submit.project
    assert isinstance(parent, Parent)
    children = [child for one in parent.children if (child := ledger.build(one.id))]
    images = [image for child in children for image in _images(child)]
    after = replace(stored, log_complete=all(child.log_complete is not False for child in children))
    if parent.state is not State.SUCCEEDED:
        for child in children:
            if child.build.fence:
                ledger.forget(project, attempt_name(child.id, child.build.fence))
        ended = _without_image(parent, children)
        return replace(after, envelope=_told(ended, stored, children, now))
    for child in children:
        ledger.publish(project, attempt_name(child.id, child.build.fence))
    digest = _push_index(ledger, project, images)
    for tag in stored.submit.tags:
        ledger.set_tag(project, tag, digest)
    whole = Envelope(outcome="succeeded", manifest_digest=digest, platforms=tuple(images))
    envelope = _told(_with_first(whole, children[0]), stored, children, now)
    return replace(after, envelope=envelope, reference=reference(host, project, digest))


def _images(child: StoredBuild) -> Sequence[PlatformImage]:
    return child.envelope.platforms if child.envelope else ()


def _push_index(ledger: Ledger, project: str, images: Sequence[PlatformImage]) -> str:
    body = index_of([_part(ledger, project, image) for image in images])
    digest = digest_of(body)
    parts = tuple(image.manifest_digest for image in images)
    index = Manifest(
        repository=project, digest=digest, media_type=OCI_INDEX, body=body, parts=parts
    )
    ledger.add_manifest(index, "")
    return digest


def _part(ledger: Ledger, project: str, image: PlatformImage) -> Part:
    manifest = ledger.manifest(project, image.manifest_digest, "")
    assert manifest is not None, image
    return Part(
        platform=image.platform,
        media_type=manifest.media_type,
        digest=manifest.digest,
        size_bytes=len(manifest.body),
    )


def _with_first(envelope: Envelope, child: StoredBuild) -> Envelope:
    """Add what an image has once: of the platform that was asked for first."""
    first = child.envelope
    assert first is not None
    return msgspec.structs.replace(
        envelope,
        config_digest=first.config_digest,
        config=first.config,
        artifacts=first.artifacts,
        scan=first.scan,
    )


def _without_image(parent: Parent, children: Sequence[StoredBuild]) -> Envelope:
    if parent.state is State.CANCELLED:
        return Envelope(outcome="cancelled", stop_proof=_proof(children))
    culprit = next(child for child in children if child.id == parent.culprit)
    return Envelope(outcome="failed", failure=_failure(parent, culprit))


def _failure(parent: Parent, culprit: StoredBuild) -> Failure:
    platform = parent.child(culprit.id).platform
    failure = culprit.envelope.failure if culprit.envelope else None
    if failure is None:
        return Failure(cause="runner", message=f"{platform}: no reason was given")
    message = f"{platform}: {failure.message}"[:1000]
    return msgspec.structs.replace(failure, message=message)


def _proof(children: Sequence[StoredBuild]) -> StopProof | None:
    """Return what was left of all that was stopped; none when nobody looked at some of it."""
    stopped = [child for child in children if child.build.state is State.CANCELLED]
    ran = [child.envelope and child.envelope.stop_proof for child in stopped if child.build.fence]
    proofs = [proof for proof in ran if proof]
    if not ran or len(proofs) < len(ran):
        return None
    return StopProof(
        processes=_all(proof.processes for proof in proofs),
        mounts=_all(proof.mounts for proof in proofs),
        containers=_all(proof.containers for proof in proofs),
        cgroups=_all(proof.cgroups for proof in proofs),
        directories=_all(proof.directories for proof in proofs),
        took_ms=max(proof.took_ms for proof in proofs),
    )


def _all(found: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(one for some in found for one in some)[:64]


def _told(
    envelope: Envelope, parent: StoredBuild, children: Sequence[StoredBuild], now: datetime
) -> Envelope:
    """Add what is known of the builds together: the slowest, the largest, the sum."""
    told = [child.envelope for child in children if child.envelope]
    peaks = [one.peak_memory_bytes for one in told if one.peak_memory_bytes is not None]
    began = parent.started_at or now
    return msgspec.structs.replace(
        envelope,
        timings=Timings(
            fetching_ms=max((one.timings.fetching_ms for one in told), default=0),
            building_ms=max((one.timings.building_ms for one in told), default=0),
            pushing_ms=max((one.timings.pushing_ms for one in told), default=0),
            total_ms=int((now - began).total_seconds() * 1000),
        ),
        peak_memory_bytes=max(peaks, default=None),
        cache=CacheUse(
            steps=sum(one.cache.steps for one in told), cached=sum(one.cache.cached for one in told)
        ),
        bytes_moved=_moved([one.bytes_moved for one in told]),
        warnings=_warnings(children),
        log_bytes=sum(one.log_bytes for one in told),
        attempts=sum(child.build.attempts for child in children),
        where=parent.last_runner,
    )


def _moved(all_moved: Sequence[BytesMoved]) -> BytesMoved:
    names = BytesMoved.__struct_fields__
    return BytesMoved(**{name: sum(getattr(one, name) for one in all_moved) for name in names})


def _warnings(children: Sequence[StoredBuild]) -> tuple[str, ...]:
    found = [
        f"{child.submit.plan.platform}: {warning}"[:1024]
        for child in children
        for warning in (child.envelope.warnings if child.envelope else ())
    ]
    return tuple(found[:64])
