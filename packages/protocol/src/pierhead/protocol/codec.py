"""From models to JSON and back, bounded.

Unknown fields are ignored in both directions, so either side may be newer. A document that is too
large, too deep or of another shape is refused with the place that is wrong, and what has to be
there: in words for people, never in those of the decoder.
"""

from typing import Final, TypeVar

import msgspec

from pierhead.protocol.errors import Invalid
from pierhead.protocol.problem import problem
from pierhead.protocol.shape import complaint

T = TypeVar("T")

# The largest document is an envelope with a full image configuration; 1 MiB is ten times that.
DOCUMENT_BYTES_MAX: Final = 1024 * 1024


def to_wire(model: msgspec.Struct) -> bytes:
    """Return the JSON of a model.

    Raises:
        Invalid: a text in it is none: half of a surrogate pair, as Python makes of odd arguments.
    """
    try:
        return msgspec.json.encode(model)
    except UnicodeEncodeError as error:
        shown = error.object[max(0, error.start - 20) : error.end].encode("utf-8", "replace")
        detail = f"not text in UTF-8: {shown.decode()}"
        hint = "names and values are text; what is not goes into a file of the context"
        raise Invalid(problem("invalid-document", detail, hint=hint)) from error


def from_wire(kind: type[T], data: bytes) -> T:
    """Return the model in `data`.

    Raises:
        Invalid: not JSON, not of this shape, or over `DOCUMENT_BYTES_MAX`.
    """
    if len(data) > DOCUMENT_BYTES_MAX:
        detail = f"the document has {len(data)} bytes; at most {DOCUMENT_BYTES_MAX} are read"
        raise Invalid(problem("too-large", detail))
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        wrong = complaint(kind, str(error))
        raise Invalid(problem("invalid-document", wrong.text, hint=wrong.hint)) from error
