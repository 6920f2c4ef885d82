"""No secret comes out of a log, in whichever form it is printed and wherever the log is cut."""

import base64
import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pierhead.protocol.redact import MARK, SHORTEST, Patterns, Redactor, hide_tokens

SECRET = b's3cr3t/v+lue\'with "odd" b\xc3\xa4rks\\'
FORMS = {
    "plain": SECRET,
    "base64": base64.b64encode(SECRET),
    "base64 after one byte": base64.b64encode(b"x" + SECRET),
    "base64 after two bytes": base64.b64encode(b"user:" + SECRET + b"@host"),
    "base64 for urls": base64.urlsafe_b64encode(SECRET + b"?"),
    "base64 with a line feed": base64.b64encode(SECRET + b"\n"),
    "hex": SECRET.hex().encode(),
    "HEX": SECRET.hex().upper().encode(),
    "url": quote(SECRET, safe="").encode(),
    "path of a url": quote(SECRET).encode(),
    "form": quote_plus(SECRET).encode(),
    "json": json.dumps(SECRET.decode()).encode(),
    "json with letters": json.dumps(SECRET.decode(), ensure_ascii=False).encode(),
    "shell": b"'" + SECRET.replace(b"'", b"'\\''") + b"'",
}
# What may be seen of a form besides the mark: what only stands around it.
LETTERS = 8


def redacted(values: list[bytes], *parts: bytes) -> bytes:
    stream = Redactor(Patterns(values))
    return b"".join(map(stream.feed, parts)) + stream.finish()


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_secret_is_hidden_in_every_form_that_programs_print(form: bytes) -> None:
    shown = redacted([SECRET], b"before " + form + b" after\n")

    assert MARK in shown
    assert len(shown) < len(b"before *** after\n") + 2 * LETTERS
    assert shown.startswith(b"before ")
    assert shown.endswith(b" after\n")


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_secret_that_is_cut_anywhere_is_hidden(form: bytes) -> None:
    whole = b"<" + form + b">\n"
    expected = redacted([SECRET], whole)

    for cut in range(len(whole) + 1):
        assert redacted([SECRET], whole[:cut], whole[cut:]) == expected
    assert redacted([SECRET], *(whole[at : at + 1] for at in range(len(whole)))) == expected


def test_each_line_of_a_value_is_hidden() -> None:
    key = b"-----BEGIN KEY-----\nMIIEvQIBADANBgkqhki\nG9w0BAQEFAASCBKcw\nab\n-----END KEY-----\n"

    shown = redacted([key], b"first MIIEvQIBADANBgkqhki\nthen G9w0BAQEFAASCBKcw\nab\n")

    assert shown == b"first ***\nthen ***\nab\n"


@pytest.mark.parametrize("value", [b"", b"{", b"true", b"12345", b"   1   \n"])
def test_what_is_too_short_is_not_looked_for(value: bytes) -> None:
    log = b'{"ok": true, "n": 12345}   1   \n'

    assert redacted([value], log) == log


def test_a_value_is_found_with_and_without_the_line_feed_that_a_file_ends_with() -> None:
    assert redacted([b"from-a-file\n"], b"a from-a-file b from-a-file\nc") == b"a *** b ***c"


def test_a_half_megabyte_is_found_in_pieces_and_never_held_back_for_long() -> None:
    value = bytes(range(33, 126)) * 5600  # 508 KiB
    stream = Redactor(Patterns([value]))

    shown = [stream.feed(value[at : at + 65_536]) for at in range(0, len(value), 65_536)]

    assert b"".join(shown) + stream.finish() == MARK
    assert Patterns([value]).longest < 4096


def test_a_stream_that_ends_within_a_secret_does_not_show_its_beginning() -> None:
    assert redacted([b"a-rather-long-secret"], b"is a-rather-long-s") == b"is ***"


def test_secrets_that_overlap_are_one_hidden_range() -> None:
    assert redacted([b"aaaaaa"], b"b" + b"a" * 1000, b"a" * 1000 + b"b") == b"b***b"
    assert redacted([b"abcdefgh", b"efghijkl"], b"(abcdefghijkl)") == b"(***)"


def test_without_secrets_nothing_is_held_back() -> None:
    stream = Redactor(Patterns([]))

    assert stream.feed(b"at once") == b"at once"


VALUES = st.lists(st.binary(min_size=SHORTEST, max_size=40), min_size=1, max_size=4)


@given(values=VALUES, noise=st.lists(st.binary(max_size=30), max_size=6), data=st.data())
def test_no_value_comes_out_however_the_stream_is_cut(
    values: list[bytes], noise: list[bytes], data: st.DataObject
) -> None:
    parts = data.draw(st.permutations([*values, *noise]))
    log = b"\n".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=8)))
    pieces = [log[a:b] for a, b in zip([0, *cuts], [*cuts, len(log)], strict=True)]

    shown = redacted(values, *pieces)

    long_enough = [value for value in values if len(value.strip()) >= SHORTEST]
    assert not [value for value in long_enough if value in shown]
    assert shown == redacted(values, log)


def test_a_text_is_hidden_like_a_stream() -> None:
    assert Patterns([b"hunter2-hunter2"]).hide("exit 1: hunter2-hunter2!") == "exit 1: ***!"


def test_tokens_of_ours_are_cut_in_log_records() -> None:
    event = {"event": "x", "token": "pho_abcdefgh12345678", "n": 3}

    assert hide_tokens(None, "info", event) == {"event": "x", "token": "pho_abcdefgh***", "n": 3}


@given(
    st.lists(st.text("ab", min_size=SHORTEST, max_size=12).map(str.encode), max_size=9),
    st.text("ab", max_size=60).map(str.encode),
)
def test_of_values_that_begin_alike_the_longest_is_hidden(values: list[bytes], data: bytes) -> None:
    patterns = Patterns(values)
    plain = {at for value in values for at in range(len(data)) if data.startswith(value, at)}
    ends = {at: max(len(v) for v in values if data.startswith(v, at)) + at for at in plain}
    hidden = {place for at, end in ends.items() for place in range(at, end)}

    assert {p for start, end in patterns.find(data) for p in range(start, end)} == hidden


def test_very_many_lines_that_begin_alike_are_looked_for_at_once() -> None:
    lines = b"\n".join(b"export A%05d" % number for number in range(30_000))
    data = b"export A" * 50_000 + b"!"

    assert redacted([lines], data) == data
    assert redacted([lines], data + b"export A00007!") == data + MARK + b"!"
