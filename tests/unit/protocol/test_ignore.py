"""A context is left with the same files by us as by BuildKit."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pierhead.protocol.ignore import PATTERNS_MAX, Ignore, parse_ignore
from pierhead.protocol.wildcard import pieces_of, to_regex

# What patternmatcher's own table says of a pattern and a path.
ONE_PATTERN = [
    ("**", "dir/file", True),
    ("**/", "file", True),
    ("**/**", "dir/file", True),
    ("dir/**", "dir/dir2/file", True),
    ("abc/**", "abc", False),
    ("**/dir", "dir/file", True),
    ("**/dir2/*", "dir/dir2/file", True),
    ("**/dir2/**", "dir/dir2/dir3/file", True),
    ("**file", "dir/dir/file", True),
    ("**file", "myfile", True),
    ("**/file", "myfile", False),
    ("**/.foo", "bar.foo", False),
    ("**/file*.txt", "dir/dir/file.txt", True),
    ("**/**/*.txt", "file.txt", True),
    ("**/**/*.txt2", "dir/dir/file.txt", False),
    ("a**/*.txt", "a/dir/dir/file.txt", True),
    ("a/*.txt", "a/dir/file.txt", False),
    ("a/*.txt**", "a/file.txt", True),
    ("a[b-d]e", "ace", True),
    ("a[b-d]e", "aae", False),
    ("a[^b-d]e", "aze", True),
    ("a[^^]e", "a^e", False),
    (r"a\*b", "a*b", True),
    (r"a\*b", "axb", False),
    ("a\\\\", "a\\", True),
    (r"[\]a]", "]", True),
    (r"[x\-]", "-", True),
    (r"[x\-]", "z", False),
    ("[&&a]", "&", True),
    ("[[a]", "[", True),
    ("ab]", "ab]", True),
    ("abc.def", "abcZdef", False),
    ("a.|)$(}+{bc", "a.|)$(}+{bc", True),
    ("a?b", "a☺b", True),
    ("a?b", "a/b", False),
    ("[a-\u03b6]*", "\u03b1", True),
    ("dist/*.whl", "dist/proxy.py-2.4.0rc3.dev36+g08acad9-py3-none-any.whl", True),
    ("a", "a\n", False),
    ("../a", "a", False),
    ("x/../../a", "a", False),
    ("/../a", "a", True),
    ("/", "a", False),
    (".", "a", False),
    ("a\u2028b", "a\u2028b", True),
]


def walked(ignore: Ignore, path: str) -> bool:
    """Say whether a walk from the root leaves a path out."""
    out = False
    fits: tuple[bool, ...] = ()
    parts = path.split("/")
    for depth in range(1, len(parts) + 1):
        out, fits = ignore.look("/".join(parts[:depth]), fits)
    return out


@pytest.mark.parametrize(("pattern", "path", "out"), ONE_PATTERN)
def test_one_pattern_fits_what_moby_says_it_fits(pattern: str, path: str, out: bool) -> None:
    assert walked(parse_ignore([pattern]), path) is out


@pytest.mark.parametrize(
    ("patterns", "path", "out"),
    [
        (["**", "!util/web"], "util/web/foo", False),
        (["**", "!util/web", "util/web/foo"], "util/web/foo", True),
        (["**", "!dist/*.whl"], "dist/a+b.whl", False),
        (["docs", "!docs/README.md"], "docs/README.md", False),
        (["docs/", " !docs/README.md "], "docs/README.md", False),
        (["docs", "! docs/README.md"], "docs/README.md", False),
        (["*", "!a/**/c"], "a/b/c", False),
        # Patterns that cannot change a folder's answer are not tried there, nor inherited.
        (["foo/bar", "!foo"], "foo/bar", True),
        (["docs", "!docs/x", "doc*"], "docs/x", False),
    ],
)
def test_the_last_pattern_that_fits_decides(patterns: list[str], path: str, out: bool) -> None:
    assert walked(parse_ignore(patterns), path) is out


@pytest.mark.parametrize(
    "pattern",
    ["!", "[", "a[", "[^", "[^]", "[]", "[]a]", "[-]", "[x-]", "[-x]", "[a-b-c]", "[z-a]", "\\"],
)
def test_what_is_no_pattern_is_refused_with_its_line(pattern: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        parse_ignore(["fine", pattern])


@pytest.mark.parametrize(
    ("keep", "folder", "may"),
    [
        ("!src", ".git", False),
        ("!src", "src", False),
        ("!src/main.c", "src", True),
        ("!src/*", "src", True),
        ("!src/*/deep", "src/a", True),
        ("!**/keep", ".git", True),
        ("!doc*", "docs", True),
        ("!doc*", "other", False),
        (r"!a\b/c", "ab", True),
    ],
)
def test_a_folder_is_entered_only_where_something_may_be_kept(
    keep: str, folder: str, may: bool
) -> None:
    assert parse_ignore(["*", keep]).may_keep_below(folder) is may


@given(
    st.lists(
        st.sampled_from(["a", "b", "*", "**", "?", "/", "[ab]", r"\a", r"\*", "]"]), min_size=1
    ),
    st.text(alphabet="ab/*]", min_size=1, max_size=6),
)
def test_what_fits_a_pattern_ends_as_it_does(pieces: list[str], path: str) -> None:
    """So a look at the end of a path is enough for most."""
    ignore = parse_ignore(["".join(pieces)])
    assert ignore.look(path)[0] is any(one.regex.match(path) for one in ignore.patterns)


OF_NO_LENGTH = ["*", "**", "/", "?", "a", "b", "[ab]", "[^a]", "**/", "/**/", "*"]


@given(
    st.lists(st.sampled_from(OF_NO_LENGTH), min_size=1, max_size=9),
    st.text(alphabet="ab/", max_size=9),
)
def test_what_is_never_tried_twice_fits_the_same(pieces: list[str], path: str) -> None:
    text = "".join(pieces)
    try:
        ours = to_regex(text)
    except re.error as error:
        assert "too many" in str(error)  # noqa: PT017 - no pattern of these is wrong otherwise
        return
    theirs = "".join(pieces_of(text)) + r"\Z"
    if not (text.startswith("**") and {*text[2:]}.isdisjoint("*?[/")):  # those end in anything
        assert bool(re.match(ours, path, re.S)) is bool(re.match(theirs, path, re.S))


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a" * 30 + "*b", "a" * 250 + "/b"),
        ("*a" * 30 + "b", "a" * 250 + "b/b"),
        ("**/a/" * 30 + "c", "a/" * 200 + "b/c"),
        ("**/*a*a*a*a*a*a*a/*b", ("a" * 250 + "/") * 15 + "c/b/b"),
        ("**a*a*a*a*a*a", ("a" * 250 + "/") * 15 + "x"),
        ("*[^b]" * 5 + "*b*c", ("a" * 250 + "/") * 10 + "bbc/c"),
        ("a**" * 5 + "b*c", ("a" * 250 + "/") * 10 + "c"),
        ("*?" * 60 + "b", "a" * 250 + "/b"),
    ],
)
def test_no_pattern_holds_up_whoever_looks(pattern: str, path: str) -> None:
    """Each of these would take years, if what fitted were tried in every other way."""
    assert parse_ignore([pattern]).look(path)[0] is False


@pytest.mark.parametrize("pattern", ["a**b**c**d**e**f**g", "*" + "[^a]*" * 6, "x" * 4097])
def test_what_no_real_file_has_is_refused_with_its_line(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"line 2: .* is not a pattern: (too many|it is longer)"):
        parse_ignore(["fine", pattern])


def test_a_file_has_an_end() -> None:
    assert len(parse_ignore(["x"] * PATTERNS_MAX).patterns) == PATTERNS_MAX
    with pytest.raises(ValueError, match="more than 5000 patterns"):
        parse_ignore(["x"] * (PATTERNS_MAX + 1))


PIECES = st.sampled_from(["a", "b", "*", "**", "?", "/", "[ab]"])
PATHS = st.lists(st.sampled_from(["a", "b", "ab"]), min_size=2, max_size=4)


@given(st.lists(PIECES, min_size=1, max_size=6), PATHS)
def test_nothing_that_is_kept_is_ever_missed(pieces: list[str], path: list[str]) -> None:
    """The first line leaves all out, so a folder is only entered for what the second keeps."""
    ignore = parse_ignore(["*", "!" + "".join(pieces)])
    kept = not walked(ignore, "/".join(path))
    folders = ["/".join(path[:depth]) for depth in range(1, len(path))]
    if kept:
        assert all(not walked(ignore, one) or ignore.may_keep_below(one) for one in folders)
