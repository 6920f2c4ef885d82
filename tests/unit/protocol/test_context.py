"""What a name in a context may be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pierhead.protocol.archive import ArchiveError, Kind, Member
from pierhead.protocol.context import link_parts, normal_mode, safe_parts


def named(name: bytes, target: bytes = b"") -> Member:
    return Member(name=name, kind=Kind.FILE, target=target)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (b"a", (b"a",)),
        (b"./a/b/", (b"a", b"b")),
        (b"a//b", (b"a", b"b")),
        (b".", ()),
        (b"..a/b..", (b"..a", b"b..")),
        (b"\xff\xfe/\n", (b"\xff\xfe", b"\n")),
    ],
)
def test_a_name_below_the_root_is_taken_apart(name: bytes, parts: tuple[bytes, ...]) -> None:
    assert safe_parts(named(name)) == parts


@pytest.mark.parametrize(
    "name", [b"/etc/passwd", b"..", b"a/../../b", b"a/..", b"a\0b", b"/", b"x" * 256, b"a/" * 501]
)
def test_a_name_that_leaves_the_root_is_refused(name: bytes) -> None:
    with pytest.raises(ArchiveError):
        safe_parts(named(name))
    with pytest.raises(ArchiveError):
        link_parts(named(b"link", target=name))


@given(st.binary(max_size=300))
def test_no_name_leads_outside(name: bytes) -> None:
    try:
        parts = safe_parts(named(name))
    except ArchiveError:
        return
    assert all(part not in {b"", b".", b".."} and b"/" not in part for part in parts)


@given(st.integers(0, 0o7777))
def test_a_mode_says_only_whether_a_file_is_executable(mode: int) -> None:
    assert normal_mode(mode) == (0o755 if mode & 0o111 else 0o644)
