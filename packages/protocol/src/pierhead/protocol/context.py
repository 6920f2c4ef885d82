"""What may be in a build context: the rules that packer and unpacker share.

A context is a tree of files, folders and symbolic links below one root. Links are kept as they are,
wherever they point: they mean something inside the image. Nothing is ever written through one.
"""

from typing import Final

from pierhead.protocol.archive import ArchiveError, Kind, Member

# Deeper trees cannot be removed again by what walks them folder in folder.
DEPTH_MAX: Final = 500


def safe_parts(member: Member) -> tuple[bytes, ...]:
    """Return the parts of a member's name below the root; none for the root itself.

    Raises:
        ArchiveError: the name leaves the root, or cannot be one.
    """
    parts = tuple(part for part in member.name.split(b"/") if part not in {b"", b"."})
    shown = member.name[:200].decode("utf-8", "replace")
    if member.name.startswith(b"/") or b".." in parts or b"\0" in member.name:
        raise ArchiveError(f"the name {shown!r} leaves the context")
    if len(parts) > DEPTH_MAX:
        raise ArchiveError(f"the name {shown!r} is nested deeper than {DEPTH_MAX} folders")
    if any(len(part) > 255 for part in parts):
        raise ArchiveError(f"the name {shown!r} has a part of over 255 bytes")
    return parts


def link_parts(member: Member) -> tuple[bytes, ...]:
    """Return the parts of the name that a hard link points to, which must be in the context."""
    return safe_parts(Member(name=member.target, kind=Kind.FILE))


def normal_mode(mode: int) -> int:
    """Return the mode that a file or folder travels with: readable, and executable or not."""
    return 0o755 if mode & 0o111 else 0o644
