"""Image builds as a library: `RoutedImageBuilder` over a control plane, and all that it speaks in.

The names below are the public API. They need nothing of a server; what a control plane is made of
is beside them, behind the extra `[server]`.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from pierhead.router.blocking import BlockingBuilder, blocking
    from pierhead.router.builder import (
        Build,
        BuildExecutor,
        ImageBuilder,
        RoutedImageBuilder,
        StartCancelled,
        image_or_raise,
    )
    from pierhead.router.errors import (
        BuildCancelledError,
        BuildError,
        BuildFailedError,
        IntegrityError,
        NoRunnerError,
        ProtocolMismatchError,
        RefusedError,
        RouterUnavailableError,
    )
    from pierhead.router.events import (
        Cursor,
        Event,
        FellBack,
        Finished,
        Log,
        Notice,
        OnEvent,
        Progress,
        Queued,
        Requeued,
        Started,
        Step,
    )
    from pierhead.router.image import (
        Artifact,
        BuildId,
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
    from pierhead.router.place import Capabilities, PullCredentials, RunnerInfo
    from pierhead.router.remote import RouterExecutor
    from pierhead.router.request import (
        BuildPolicy,
        BuildRequest,
        Context,
        DirectoryContext,
        GitContext,
        Scan,
        Secret,
        TarContext,
        Want,
    )

__all__ = [
    "Artifact",
    "BlockingBuilder",
    "Build",
    "BuildCancelledError",
    "BuildError",
    "BuildExecutor",
    "BuildFailedError",
    "BuildId",
    "BuildPolicy",
    "BuildRequest",
    "Built",
    "CacheUse",
    "Cancelled",
    "Capabilities",
    "Context",
    "Cursor",
    "Digest",
    "DirectoryContext",
    "Eligible",
    "Event",
    "Failed",
    "FellBack",
    "Finished",
    "GitContext",
    "Healthcheck",
    "ImageBuilder",
    "ImageConfig",
    "ImageInfo",
    "IntegrityError",
    "Log",
    "NoRunnerError",
    "NotBuilt",
    "Notice",
    "OnEvent",
    "Outcome",
    "Progress",
    "ProtocolMismatchError",
    "PullCredentials",
    "Queued",
    "RefusedError",
    "Rejection",
    "Requeued",
    "RoutedImageBuilder",
    "RouterExecutor",
    "RouterUnavailableError",
    "RunnerInfo",
    "Scan",
    "ScanMissing",
    "ScanPending",
    "ScanReport",
    "Secret",
    "StartCancelled",
    "Started",
    "Step",
    "TarContext",
    "Timings",
    "Want",
    "blocking",
    "image_or_raise",
]

# The modules that have the names. They are imported with the first of them that is asked for, and
# not before: the command and the server are below this package, and need none of them.
_MODULES = (
    "blocking",
    "builder",
    "errors",
    "events",
    "image",
    "outcome",
    "place",
    "remote",
    "request",
)


def __getattr__(name: str) -> _typing.Any:
    """Bring the public names, all at once: one of them is named like its module."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    modules = [_importlib.import_module(f"{__name__}.{module}") for module in _MODULES]
    found = {
        one: getattr(module, one) for module in modules for one in __all__ if one in vars(module)
    }
    globals().update(found)
    return found[name]
