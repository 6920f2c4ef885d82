"""From a plan to the command lines of buildah 1.28, and what of a plan cannot be one."""

from dataclasses import dataclass
from typing import Final

from pierhead.protocol.plan import Plan
from pierhead.protocol.result import Failure

# One name for whatever was built last: the image before it stays in the cache without a name.
LAST_BUILT: Final = "localhost/pierhead/last:latest"
# 1980-01-01 in UTC. ZIP cannot say earlier times, so with them no step could make a wheel of what
# an earlier one copied.
SOURCE_DATE_EPOCH: Final = 315_532_800
# execve(2) takes a quarter of the stack's limit, 2 MiB as Linux comes; a quarter of that is ours.
ARGUMENT_BYTES_MAX: Final = 512 * 1024
# Where the root that a build sees has its secrets, in memory: one file for each.
SECRETS_FOLDER: Final = "/run/pierhead-secrets"
# Beside them, under a name that no secret can have: what lets buildah in to the runner's relay.
LOGIN_FILE: Final = ".registries.json"
# What buildah starts instead of runc: it looks at a step's mounts first.
RUNTIME: Final = "/run/pierhead/runtime"


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """Where one project's builds in one slot keep images and containers; for nothing else."""

    root: str
    containers: str  # what belongs to working containers: their list, and copies of secrets
    run: str
    runtime: str  # runc's own state
    policy: str  # what base images may be: of registries
    ignore: str  # an empty file: what is to be ignored was left out when the context was packed

    @classmethod
    def below(cls, folder: str) -> "Store":
        """Return the store in a folder."""
        return cls(
            root=f"{folder}/storage",
            containers=f"{folder}/storage/overlay-containers",
            run=f"{folder}/run",
            runtime=f"{folder}/runc",
            policy=f"{folder}/policy.json",
            ignore=f"{folder}/empty-ignore-file",
        )

    def buildah(self, *arguments: str) -> list[str]:
        """Return a call of buildah on this store."""
        place = ["--root", self.root, "--runroot", self.run]
        return ["buildah", *place, "--storage-driver", "overlay", *arguments]


def refusal(plan: Plan) -> Failure | None:
    """Say why a plan can be no command line on any machine; none: it can be one."""
    values = [*plan.build_args.items(), *plan.labels.items()]
    texts = [plan.dockerfile, plan.target or "", *(text for pair in values for text in pair)]
    if any("\0" in text for text in texts):
        message = "the plan has a NUL character in a name or a value"
        return Failure(cause="dockerfile", message=message)
    if sum(len(text.encode()) for text in texts) > ARGUMENT_BYTES_MAX:
        limit = ARGUMENT_BYTES_MAX // 1024
        message = f"build arguments and labels are larger than {limit} KiB together"
        return Failure(cause="dockerfile", message=message, hint="put the values into a file")
    return None


def build_command(
    store: Store,
    plan: Plan,
    context: str,
    *,
    cgroup: str | None,
    dockerfile: str | None = None,
    ignore: str | None = None,
    login: str | None = None,
) -> list[str]:
    """Return the call that builds; `cgroup`: full isolation below it, none: chroot.

    `dockerfile` stands for the plan's own, when that had to be said differently. `ignore` is a file
    that says what of the context no step sees; none: they see all of it. `login` is the file with
    what lets buildah in where its base images are.

    The stored image has Docker's format: buildah's OCI one has no place for HEALTHCHECK and SHELL.
    """
    options = ["--layers", "--format", "docker", "--ignorefile", ignore or store.ignore]
    options += ["--signature-policy", store.policy]
    # "host" is the build's own network namespace, in which buildah itself runs. For "none" runc
    # makes another one with nothing but a loopback; base images can still be had.
    network = "none" if plan.network == "none" and cgroup else "host"
    if cgroup is None:
        options += ["--isolation", "chroot"]
    else:
        options += ["--isolation", "oci", "--runtime", RUNTIME]
        options += ["--runtime-flag", f"root={store.runtime}", "--cgroup-parent", cgroup]
    options += ["--network", network]
    options += ["--authfile", login] if login else []
    epoch = SOURCE_DATE_EPOCH if plan.source_date_epoch is None else plan.source_date_epoch
    options += ["--timestamp", str(epoch)]
    options += ["--no-cache"] if plan.no_cache else []
    options += ["--pull=always"] if plan.pull else []
    options += [word for entry in plan.add_hosts for word in ("--add-host", entry)]
    options += ["--shm-size", f"{plan.shm_bytes // 1024}k"] if plan.shm_bytes else []
    options += [word for limit in plan.ulimits for word in ("--ulimit", limit)]
    options += ["--target", plan.target] if plan.target else []
    for name, value in sorted(plan.build_args.items()):
        # Never by buildah's environment: a name like LD_PRELOAD would reach buildah itself.
        options += ["--build-arg", f"{name}={value}"]
    for name, value in sorted(plan.labels.items()):
        options += ["--label", f"{name}={value}"]
    for secret_id in plan.secrets:
        # Without its type, one that is called like a variable of buildah's would be that.
        options += ["--secret", f"id={secret_id},type=file,src={SECRETS_FOLDER}/{secret_id}"]
    file = dockerfile or f"{context}/{plan.dockerfile}"
    return store.buildah("bud", *options, "-t", LAST_BUILT, "-f", file, context)
