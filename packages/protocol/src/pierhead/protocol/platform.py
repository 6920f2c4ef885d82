"""Platforms as `os/architecture[/variant]`, normalised as containerd and BuildKit do."""

from typing import Annotated, Final, TypeAlias

from msgspec import Meta

PLATFORM_PATTERN: Final = r"^[a-z0-9]+/[a-z0-9_]+(/[a-z0-9]+)?\Z"
PlatformText: TypeAlias = Annotated[
    str,
    Meta(
        max_length=64,
        pattern=PLATFORM_PATTERN,
        description="OS/ARCHITECTURE, or OS/ARCHITECTURE/VARIANT, in lowercase",
        examples=["linux/amd64"],
    ),
]

# What `uname -m` and people say, and what the image spec says (image-spec, config.md).
_ARCHITECTURES: Final = {
    "x86_64": "amd64",
    "x86-64": "amd64",
    "aarch64": "arm64",
    "i386": "386",
    "i686": "386",
    "armhf": "arm",
    "armv7l": "arm",
}


def normalise_platform(os: str, architecture: str, variant: str | None = None) -> str:
    """Return the one spelling of a platform.

    `arm64` is `arm64/v8` and `amd64` is `amd64/v1`, so these variants are left out.
    """
    architecture = _ARCHITECTURES.get(architecture.lower(), architecture.lower())
    if (architecture, variant) in {("arm64", "v8"), ("amd64", "v1")}:
        variant = None
    return "/".join(part for part in (os.lower(), architecture, variant) if part)
