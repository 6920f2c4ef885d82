"""From a request and a policy to what the wire can say of them. Pure.

What the control plane cannot do is refused by its name: nothing that was asked for is ignored.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, get_args

import msgspec

from pierhead.protocol.build import WhyRequest
from pierhead.protocol.plan import (
    PLATFORMS_MAX,
    QUEUE_WAIT_SECONDS_MAX,
    SECRETS_BYTES_MAX,
    TIMEOUT_SECONDS_MAX,
    ContextRef,
    IfNobody,
    Plan,
    Submit,
)
from pierhead.protocol.shape import complaint
from pierhead.router.errors import RefusedError
from pierhead.router.request import BuildPolicy, BuildRequest, IfNobodyCan, On, Scan

_PATIENCE = timedelta(seconds=300)
_LEFT_OUT: Final = "none"
_NO_CONTEXT: Final = ContextRef(
    digest="sha256:" + "0" * 64, size_bytes=0, unpacked_bytes=0, files=0
)
_FIELDS: Final = {"plan.build_args": "args", "plan.timeout_seconds": "timeout", "plan.": ""}


def check(request: BuildRequest, policy: BuildPolicy) -> None:
    """Return if a control plane can do what is asked.

    Raises:
        RefusedError: it cannot, and what.
    """
    _one_of("scan", request.scan, [*Scan])
    _one_of("on", policy.on, [None, *get_args(On)])
    _one_of("if_nobody_can", policy.if_nobody_can, [None, *get_args(IfNobodyCan)])
    _one_of("secret_args", policy.secret_args, [None, True, False])
    asked = {
        "want": bool(request.want),
        "scan=gate": request.scan == Scan.GATE,  # importers may say it as text
        "a priority": request.priority != 0,
        "where": policy.where is not None,
        "on='nodes'": policy.on == "nodes",
        "on='ci'": policy.on == "ci",
        "here_memory_bytes": policy.here_memory_bytes is not None,
        "if_nobody_can='build-here'": policy.if_nobody_can == "build-here",
    }
    missing = [name for name, wanted in asked.items() if wanted]
    if missing:
        detail = f"this control plane cannot do that yet: {', '.join(missing)}"
        raise RefusedError(detail, hint="leave it out of the request or of the policy")
    if policy.on == "local":
        hint = "give RoutedImageBuilder your own builder: local=..."
        raise RefusedError(
            "the policy wants a local build, and there is no local builder", hint=hint
        )
    if len(request.platforms) > PLATFORMS_MAX:
        detail = f"{len(request.platforms)} platforms are too many for one build"
        raise RefusedError(detail, hint=f"at most {PLATFORMS_MAX} at once")
    _bounded("timeout", request.timeout, timedelta(seconds=TIMEOUT_SECONDS_MAX))
    _bounded("patience", policy.patience or _PATIENCE, timedelta(seconds=QUEUE_WAIT_SECONDS_MAX))


def check_form(request: BuildRequest) -> None:
    """Return if names and values are such as a control plane takes.

    Raises:
        RefusedError: one is not; the text has the field, what it has to be, and never its value.
    """
    key = _LEFT_OUT if request.key is None else request.key
    asked = submit_of(request, BuildPolicy(), _NO_CONTEXT, key)
    try:
        # Bytes as they are: of secrets only the names and sizes are looked at.
        msgspec.convert(msgspec.to_builtins(asked, builtin_types=(bytes,)), Submit)
    except msgspec.ValidationError as error:
        wrong = complaint(Submit, str(error))
        hint = wrong.hint or f"see the fields of {BuildRequest.__name__}"
        raise RefusedError(_in_its_own_words(wrong.text), hint=hint) from error
    if sum(len(value) for value in asked.secrets.values()) > SECRETS_BYTES_MAX:
        hint = "give what is large and not secret with the context"
        raise RefusedError(f"secrets are larger than {SECRETS_BYTES_MAX} bytes together", hint=hint)


def _in_its_own_words(text: str) -> str:
    """Return what is said of a field of the wire by the name that the request has for it."""
    for field, name in _FIELDS.items():
        text = text.replace(field, name)
    return text


def _one_of(name: str, said: object, known: Sequence[object]) -> None:
    if said not in known:
        words = ", ".join(repr(str(one)) if isinstance(one, str) else str(one) for one in known)
        raise RefusedError(f"{name} is {said!r:.100}", hint=f"it is one of {words}")


def _bounded(name: str, said: timedelta, most: timedelta) -> None:
    if not timedelta() < said <= most:
        raise RefusedError(f"{name} is {said}", hint=f"it is more than nothing and at most {most}")


def submit_of(request: BuildRequest, policy: BuildPolicy, context: ContextRef, key: str) -> Submit:
    """Return the document that submits a build."""
    return Submit(
        project=request.project,
        plan=Plan(
            dockerfile=request.dockerfile,
            target=request.target,
            build_args=dict(request.args),
            labels=dict(request.labels),
            no_cache=request.no_cache,
            pull=request.pull,
            platform=_only_platform(request),
            timeout_seconds=max(1, int(request.timeout.total_seconds())),
        ),
        platforms=_several_platforms(request),
        context=context,
        key=key,
        tags=request.tags,
        if_nobody=_if_nobody(policy),
        max_queue_wait_seconds=_patience_seconds(policy),
        supersedes=request.supersedes,
        environment=request.environment,
        secrets={name: secret.reveal() for name, secret in request.secrets.items()},
        secret_args=bool(policy.secret_args),
    )


def why_of(request: BuildRequest, policy: BuildPolicy) -> WhyRequest:
    """Return the document that asks who would take a build."""
    return WhyRequest(
        project=request.project,
        platform=_only_platform(request),
        platforms=_several_platforms(request),
        if_nobody=_if_nobody(policy),
        max_queue_wait_seconds=_patience_seconds(policy),
    )


def _only_platform(request: BuildRequest) -> str | None:
    return request.platforms[0] if len(request.platforms) == 1 else None


def _several_platforms(request: BuildRequest) -> tuple[str, ...]:
    return request.platforms if len(request.platforms) > 1 else ()


def _patience_seconds(policy: BuildPolicy) -> int:
    return int((policy.patience or _PATIENCE).total_seconds())


def _if_nobody(policy: BuildPolicy) -> IfNobody:
    match policy.if_nobody_can:
        case "wait" | "fail" as said:
            return said
        case _:
            # Runners alone: the control plane's own machine is not one of them.
            return "fail" if policy.on == "runners" else "here"
