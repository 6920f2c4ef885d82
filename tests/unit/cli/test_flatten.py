"""Layers laid over each other give what a container would see, in an order that can be unpacked."""

import gzip
import io
import tarfile

import pytest
import zstandard

from pierhead.protocol.errors import Invalid
from pierhead.router.cli.flatten import flatten, open_layer

File = tuple[str, bytes]


def layer(*members: File | str, links: dict[str, str] | None = None) -> io.BytesIO:
    """Make a layer: files with content, folders that end with a slash, hard links."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for one in members:
            name, content = (one, b"") if isinstance(one, str) else one
            member = tarfile.TarInfo(name.rstrip("/"))
            member.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.LNKTYPE, target
            archive.addfile(member)
    out.seek(0)
    return out


def seen(*layers: io.BytesIO) -> dict[str, bytes | None]:
    """Return what is seen: content of files, none for folders; links are followed."""
    out = io.BytesIO()
    flatten(list(layers), out)
    out.seek(0)
    with tarfile.open(fileobj=out) as archive:
        found: dict[str, bytes | None] = {}
        for member in archive:
            assert member.name not in found, "a path comes once"
            if member.islnk():
                found[member.name] = found[member.linkname]  # its target came before
            else:
                content = archive.extractfile(member)
                found[member.name] = content.read() if content else None
        return found


def test_the_upper_file_counts_and_the_rest_stays() -> None:
    lower = layer("d/", ("d/a", b"old"), ("d/b", b"kept"))
    assert seen(lower, layer(("./d/a", b"new"))) == {"d": None, "d/a": b"new", "d/b": b"kept"}


def test_what_was_removed_is_gone_with_everything_below_it() -> None:
    lower = layer("d/", "d/e/", ("d/e/f", b"x"), ("keep", b"y"))
    assert seen(lower, layer("d/", ("d/.wh.e", b""))) == {"keep": b"y", "d": None}


def test_what_was_removed_and_made_again_is_the_new_one() -> None:
    lower = layer("d/", ("d/old", b"x"))
    upper = layer("d/", ("d/.wh..wh..opq", b""), ("d/new", b"y"))
    assert seen(lower, upper) == {"d": None, "d/new": b"y"}


def test_a_file_in_the_place_of_a_folder_hides_what_was_in_it() -> None:
    assert seen(layer("d/", ("d/x", b"1")), layer(("d", b"2"))) == {"d": b"2"}


def test_a_link_to_a_file_that_is_still_there_stays_a_link() -> None:
    assert seen(layer(("a", b"1"), links={"b": "a"})) == {"a": b"1", "b": b"1"}


def test_a_link_to_a_file_that_changed_above_keeps_the_old_content() -> None:
    lower = layer(("a", b"old"), links={"b": "a"})
    assert seen(lower, layer(("a", b"new"))) == {"a": b"new", "b": b"old"}


def test_a_link_into_a_lower_layer_is_found_there_even_when_its_target_is_gone() -> None:
    layers = (layer(("a", b"1")), layer(links={"b": "a"}), layer((".wh.a", b"")))
    assert seen(*layers) == {"b": b"1"}


def test_a_link_to_nothing_is_refused() -> None:
    with pytest.raises(Invalid, match="which no layer has"):
        seen(layer(links={"b": "nowhere"}))


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_a_layer_is_read_however_it_is_packed(pack: type[bytes]) -> None:
    plain = layer(("a", b"1")).getvalue()
    with open_layer(io.BytesIO(pack(plain))) as opened:
        assert opened.read() == plain
