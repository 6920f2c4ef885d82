"""What is wrong with a document is said by its place, and by what has to be there."""

import msgspec
import pytest

from pierhead.protocol.codec import from_wire
from pierhead.protocol.errors import Invalid
from pierhead.protocol.plan import Plan, Submit
from pierhead.protocol.problem import REMEDIES
from pierhead.protocol.project import NewProject, NewToken
from tools.json_schema import models

PROJECT = "lowercase letters and digits, with . _ - or / between them, at most 128 characters"
USUAL = REMEDIES["invalid-document"]
CONTEXT = b'{"size_bytes":1,"unpacked_bytes":1,"files":1'


@pytest.mark.parametrize(
    ("kind", "body", "detail", "hint"),
    [
        (NewProject, b'{"name":"My App"}', f"name has to be {PROJECT}", "for example acme/web"),
        (NewProject, b'{"name":7}', f"name has to be {PROJECT}", "for example acme/web"),
        (NewProject, b"{}", f"name is missing: it has to be {PROJECT}", "for example acme/web"),
        (NewProject, b"[]", "the document has to be an object", USUAL),
        (NewProject, b'{"name":', "the document is not JSON, or only the beginning of it", USUAL),
        (NewProject, b"\xff", "the document is not JSON, or only the beginning of it", USUAL),
        (
            NewToken,
            b'{"key":"k","name":"x","ability":"god"}',
            "ability has to be one of read, root, write",
            USUAL,
        ),
        (
            NewToken,
            b'{"key":"k","name":"x","expires_in_seconds":1}',
            "expires_in_seconds has to be a whole number from 60 to 316224000",
            USUAL,
        ),
        (
            NewToken,
            b'{"key":"","name":"x"}',
            "key has to be a text, from 1 to 128 characters",
            "for example deployment-17",
        ),
        (
            Plan,
            b'{"ulimits":["core=0","x"]}',
            "ulimits[1] has to be NAME=SOFT:HARD, with a name of Linux and -1 for no limit, "
            "at most 64 characters",
            "for example nofile=1024:4096",
        ),
        (
            Plan,
            b'{"build_args":{"":"x"}}',
            "a name in build_args has to be a name without an equals sign or control characters, "
            "from 1 to 256 characters",
            "for example VERSION",
        ),
        (
            Plan,
            b'{"build_args":{"a":7}}',
            "build_args[] has to be a text, at most 32768 characters",
            USUAL,
        ),
        (Plan, b'{"no_cache":"yes"}', "no_cache has to be true or false", USUAL),
        (
            Submit,
            b'{"project":"x","plan":{},"context":' + CONTEXT + b',"digest":"ff"}}',
            "context.digest has to be sha256: and 64 digits of lowercase hexadecimal, "
            "at most 71 characters",
            "for example sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        ),
        (
            Submit,
            b'{"project":"x","plan":{},"context":' + CONTEXT + b'},"secrets":{"a":"*"}}',
            "context.digest is missing: it has to be sha256: and 64 digits of lowercase "
            "hexadecimal, at most 71 characters",
            "for example sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        ),
    ],
)
def test_a_document_of_another_shape_is_told_by_place_form_and_example(
    kind: type[msgspec.Struct], body: bytes, detail: str, hint: str
) -> None:
    with pytest.raises(Invalid) as refused:
        from_wire(kind, body)

    assert (refused.value.problem.detail, refused.value.problem.hint) == (detail, hint)


def test_a_secret_of_another_form_is_not_repeated() -> None:
    with pytest.raises(Invalid) as refused:
        from_wire(Submit, b'{"secrets":{"npm":"hunter2!"}}')

    assert refused.value.problem.detail == "secrets[] has to be base64"


def test_every_pattern_of_the_wire_has_words_and_an_example() -> None:
    """So that nobody is ever shown the pattern."""
    missing = []

    def look(schema: object) -> None:
        if isinstance(schema, dict):
            if "pattern" in schema and not {"description", "examples"} <= schema.keys():
                missing.append(schema)
            for below in schema.values():
                look(below)
        elif isinstance(schema, list):
            for below in schema:
                look(below)

    _, components = msgspec.json.schema_components(models(), ref_template="{name}")
    look(components)
    assert len(components) > 50
    assert missing == []
