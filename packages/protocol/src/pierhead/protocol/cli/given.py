"""What is given to options and arguments, checked before anything is done about it.

The types are those of the documents that it goes into, so the command line refuses what the control
plane would refuse, and can name the option. Each refusal has the form that is allowed, and an
example to type.
"""

from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

import msgspec
import typer

from pierhead.protocol.cli.speak import USAGE, CommandFailed, fail
from pierhead.protocol.client.address import check_url
from pierhead.protocol.errors import Invalid
from pierhead.protocol.shape import Shape, shape_of

T = TypeVar("T")
SHOWN_MAX: Final = 80
TEXT_FILE_BYTES_MAX: Final = 1_000_000
PROGRESS: Final = ("auto", "plain", "quiet")


def formed(kind: object) -> Callable[[typer.Context, typer.CallbackParam, T], T]:
    """Return a callback that lets only values of a type through."""

    def check(context: typer.Context, parameter: typer.CallbackParam, given: T) -> T:
        name = name_of(parameter)
        for one in given if isinstance(given, list) else [given]:
            if one is not None and not _fits(one, kind):
                raise _refused(name, one, shape_of(kind), context.command_path)
        return given

    return check


def one_of(*words: str) -> Callable[[typer.Context, typer.CallbackParam, T], T]:
    """Return a callback that lets only some words through."""

    def check(context: typer.Context, parameter: typer.CallbackParam, given: T) -> T:
        if given is not None and given not in words:
            shape = Shape("one of " + ", ".join(words), words[0])
            raise _refused(name_of(parameter), given, shape, context.command_path)
        return given

    return check


def whole(option: str, least: int, most: int, example: int) -> Callable[[Any], int]:
    """Return a parser of whole numbers; it is not told the option that it is for."""

    def number(given: Any) -> int:
        text = str(given).strip()
        if text.isascii() and text.isdigit() and len(text) < 19 and least <= int(text) <= most:
            return int(text)
        shape = Shape(f"a whole number from {least} to {most}", str(example))
        raise _refused(option, text, shape)

    return number


def text_file(option: str) -> Callable[[Any], str]:
    """Return a parser that gives what a file says: a token, a certificate. It is read once."""

    def read(given: Any) -> str:
        try:
            with open(str(given), "rb") as file:
                data = file.read(TEXT_FILE_BYTES_MAX + 1)
            if len(data) > TEXT_FILE_BYTES_MAX:
                raise ValueError("too long")
            return data.decode()
        except (OSError, ValueError) as error:
            shape = Shape("a text file of at most 1 MB", "FILE")
            raise _refused(option, given, shape) from error

    return read


def readable(
    read: Callable[[str], object], words: str, example: str, *errors: type[Exception]
) -> Callable[[typer.Context, typer.CallbackParam, T], T]:
    """Return a callback that lets only through what a function can read without its errors."""

    def check(context: typer.Context, parameter: typer.CallbackParam, given: T) -> T:
        for one in given if isinstance(given, list) else [given]:
            if one is None:
                continue
            try:
                read(str(one))
            except errors as error:
                shape = Shape(words, example)
                raise _refused(name_of(parameter), one, shape, context.command_path) from error
        return given

    return check


# Whether plain HTTP will do is for whoever speaks to it to say.
an_address = readable(
    lambda text: check_url(text, insecure_http=True),
    "an http(s) address",
    "https://build.example.com",
    Invalid,
)
AsJson = Annotated[bool, typer.Option("--json", help="As JSON")]
Url = Annotated[str | None, typer.Option(help="Control plane", callback=an_address)]
Limit = Annotated[
    int,
    typer.Option(metavar="NUMBER", help="How many, up to 200", parser=whole("--limit", 1, 200, 20)),
]


def checked(option: str, text: str, kind: object) -> str:
    """Return what was given to an option, when it is of a type.

    Raises:
        CommandFailed: it is not; the option, the form and an example were said.
    """
    if not _fits(text, kind):
        raise _refused(option, text, shape_of(kind))
    return text


def name_of(parameter: typer.CallbackParam) -> str:
    """Return what people call an option or an argument: `--build-arg`, PATH."""
    longest = max(parameter.opts, key=len)
    if longest.startswith("-"):
        return str(longest)
    return str(getattr(parameter, "metavar", None) or parameter.name or "").upper()


def _fits(value: object, kind: object) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _refused(name: str, given: object, shape: Shape, path: str = "") -> CommandFailed:
    shown = repr(str(given)[:SHOWN_MAX])
    # Of an argument the command line is shown: it has no name there.
    hint = f"{name if name.startswith('-') or not path else path} {shape.example or name}"
    return fail(f"{name} has to be {shape.words}, and not {shown}", hint, USAGE)
