"""What a tiny build says of the place it runs in, and what follows from it.

A machine may have every program and still not build: another firewall, a container's root, a
program that shows up beside buildah. So a real step looks around, with nothing but a shell, and
what it is promised is compared with what it saw.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pierhead.protocol.units import size

# So many bytes does the step have at one time, which its own cgroup has to count.
STEP_BYTES: Final = 16 * 1024**2
MEMORY_BYTES: Final = 256 * 1024**2  # the probe's limit
DOCKERFILE: Final = 'FROM scratch\nCOPY root /\nRUN ["/bin/sh", "/look"]\n'
# Only what a shell does itself: there is no other program in the image.
SCRIPT: Final = """\
echo "saw pid $$"
echo saw processes /proc/[0-9]*
read -r number < /sys/class/net/eth0/iflink && echo "saw link $number"
while read -r name to rest; do
  [ "$to" = 00000000 ] && echo "saw route $name"
done < /proc/net/route
text=0123456789abcdef
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do text=$text$text; done
echo "saw memory ${#text}"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One promise to builds; `remedy` is empty when it is kept."""

    what: str
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What the machine itself says of the place in which the tiny build ran."""

    link: int | None  # number of the host's end of the build's network
    reached: bool  # from the build's network, a server of this machine answered
    memory_bytes: int | None  # the limits that the kernel has noted
    processes: int | None
    processes_wanted: int
    steps_peak_bytes: int | None  # most memory that was counted for the steps alone


@dataclass(slots=True)
class _Saw:
    words: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, output: str) -> "_Saw":
        saw = cls()
        for line in output.splitlines():
            first, _, rest = line.partition(" ")
            name, _, said = rest.partition(" ")
            if first == "saw":
                saw.words[name] += said.split()
        return saw


def built(output: str) -> Check:
    """Say whether the step ran to its end."""
    if _Saw.of(output).words["memory"] == [str(STEP_BYTES)]:
        return Check(what="build", text="a tiny build works here")
    return failed("its step did not say what it saw")


def failed(reason: str) -> Check:
    """Return what is said when the tiny build did not end well."""
    said = " ".join(reason.split())[-300:] or "without a word"
    remedy = "see whether buildah builds: buildah bud --isolation oci FOLDER"
    return Check(what="build", text=f"a tiny build fails here: {said}", remedy=remedy)


def isolated(output: str, around: Around) -> tuple[Check, ...]:
    """Compare what the step saw with what steps are promised."""
    saw = _Saw.of(output).words
    return _processes(saw), _network(saw, around), _limits(around)


def lacks(checks: Sequence[Check]) -> list[str]:
    """Return what keeps builds from being isolated."""
    return [check.text for check in checks if check.remedy]


def _processes(saw: dict[str, list[str]]) -> Check:
    if saw["pid"] == ["1"] and saw["processes"] == ["/proc/1"]:
        return Check(what="processes", text="a step is process 1 and sees no other")
    text = f"a step is process {' '.join(saw['pid'])} and sees {len(saw['processes'])} processes"
    remedy = "let namespaces be made: no container around, or one with --privileged"
    return Check(what="processes", text=text, remedy=remedy)


def _network(saw: dict[str, list[str]], around: Around) -> Check:
    if around.link is None or saw["link"] != [str(around.link)]:
        text, remedy = "a step has not a network of its own", "see what `ip netns add try` says"
    elif saw["route"] != ["eth0"]:
        text, remedy = "a step has no way out of its network", "see what `ip route` says"
    elif around.reached:
        text = "a step reaches servers of this machine"
        remedy = "another firewall lets it in: see `iptables -S INPUT` and `nft list ruleset`"
    else:
        text, remedy = "a step has its own network, and reaches no server of this machine", ""
    return Check(what="network", text=text, remedy=remedy)


def _limits(around: Around) -> Check:
    counted = around.steps_peak_bytes or 0
    if around.memory_bytes != MEMORY_BYTES or around.processes != around.processes_wanted:
        text = "the kernel does not take limits of memory and processes"
    elif counted < STEP_BYTES:
        text = f"a step had {size(STEP_BYTES)}, and {size(counted)} were counted for it"
    else:
        return Check(what="limits", text="memory and processes of a step are limited")
    remedy = "mount the cgroups memory, pids and cpu, and let them be written to"
    return Check(what="limits", text=text, remedy=remedy)
