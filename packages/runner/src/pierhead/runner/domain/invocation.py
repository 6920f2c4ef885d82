"""From a plan to the command lines of buildah 1.28."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pierhead.protocol.plan import Plan

# One name for whatever was built last: the image before it stays in the cache without a name.
LAST_BUILT: Final = "localhost/pierhead/last:latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """Where one slot keeps images and containers. Nothing else uses these folders."""

    root: Path
    run: Path
    runtime: Path  # runc's own state

    @classmethod
    def below(cls, folder: Path) -> "Store":
        """Return the store in a slot's folder."""
        return cls(root=folder / "storage", run=folder / "run", runtime=folder / "runc")

    def buildah(self, *arguments: str) -> list[str]:
        """Return a call of buildah on this store."""
        place = ["--root", str(self.root), "--runroot", str(self.run)]
        return ["buildah", *place, "--storage-driver", "overlay", *arguments]


def build_command(
    store: Store, plan: Plan, context: Path, *, cgroup: str | None, ignore: Path
) -> list[str]:
    """Return the call that builds; `cgroup`: full isolation below it, none: chroot."""
    options = ["--layers", "--format", "oci", "--ignorefile", str(ignore)]
    if cgroup is None:
        options += ["--isolation", "chroot"]
    else:
        options += ["--isolation", "oci", "--runtime", "/usr/sbin/runc"]
        options += ["--runtime-flag", f"root={store.runtime}", "--cgroup-parent", cgroup]
    # "host" is the build's own network namespace, in which buildah itself runs.
    options += ["--network", "host"]
    options += ["--timestamp", str(plan.source_date_epoch or 0)]
    options += ["--no-cache"] if plan.no_cache else []
    options += ["--target", plan.target] if plan.target else []
    for name, value in sorted(plan.build_args.items()):
        # Never by buildah's environment: a name like LD_PRELOAD would reach buildah itself.
        options += ["--build-arg", f"{name}={value}"]
    for name, value in sorted(plan.labels.items()):
        options += ["--label", f"{name}={value}"]
    file = context / plan.dockerfile
    return store.buildah("bud", *options, "-t", LAST_BUILT, "-f", str(file), str(context))


def export_command(store: Store, layout: Path) -> list[str]:
    """Return the call that writes the image as an OCI layout: only then it has a digest."""
    return store.buildah("push", "-q", LAST_BUILT, f"oci:{layout}:latest")
