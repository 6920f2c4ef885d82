"""`--secret id=npm,env=NPM_TOKEN`: read as docker reads it, before anything is packed.

A value is read once, from the environment or a file, and goes nowhere but into the request.
"""

import csv
import os
import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pierhead.protocol.cli.speak import USAGE, fail
from pierhead.protocol.ids import SECRET_PATTERN, SecretId
from pierhead.protocol.plan import SECRETS_BYTES_MAX, SECRETS_MAX
from pierhead.protocol.shape import shape_of

_EXAMPLE: Final = "write it like --secret id=npm,env=NPM_TOKEN or --secret id=npm,src=FILE"


class Source(NamedTuple):
    """Where a secret comes from: an environment variable or a file; neither: what there is."""

    id: str
    env: str = ""
    file: str = ""


def read_secrets(texts: Sequence[str], environment: Mapping[bytes, bytes]) -> dict[str, bytes]:
    """Return the values that the options name, or end the command with what is wrong."""
    values: dict[str, bytes] = {}
    for source in map(parse_source, texts):
        if source.id in values:
            raise fail(f"--secret id={source.id} is given twice", "give each secret once", USAGE)
        values[source.id] = _read(source, environment)
    if len(values) > SECRETS_MAX:
        raise fail(f"a build has at most {SECRETS_MAX} of --secret", "give fewer", USAGE)
    if sum(map(len, values.values())) > SECRETS_BYTES_MAX:
        hint = "give what is large and not secret with the context"
        text = f"the secrets are larger than {SECRETS_BYTES_MAX // 1024} KiB together"
        raise fail(text, hint, USAGE)
    return values


def parse_source(text: str) -> Source:
    """Take `id=ID[,type=file|env][,src=FILE|,env=NAME]` apart, by the rules of docker."""
    given: dict[str, str] = {}
    for word in next(csv.reader([text]), []):
        key, equals, value = word.partition("=")
        name = "src" if key.lower() == "source" else key.lower()
        if not equals or name not in {"id", "type", "src", "env"}:
            raise fail(f"--secret does not know {key!r}", _EXAMPLE, USAGE)
        given[name] = value
    secret_id, kind = given.get("id", ""), given.get("type", "")
    if not re.match(SECRET_PATTERN, secret_id):
        raise fail(f"--secret needs an id: {shape_of(SecretId).words}", _EXAMPLE, USAGE)
    if kind not in {"", "file", "env"}:
        raise fail(f"--secret knows the types file and env, not {kind!r}", _EXAMPLE, USAGE)
    file, env = given.get("src", ""), given.get("env", "")
    if kind == "env" and not env:
        file, env = "", file
    return Source(id=secret_id, env=env, file=file)


def _read(source: Source, environment: Mapping[bytes, bytes]) -> bytes:
    named = source.env or ("" if source.file else source.id)
    value = environment.get(os.fsencode(named)) if named else None
    if value is not None:
        return value
    if source.env:
        text = f"the environment variable {source.env} of --secret id={source.id} is not set"
        raise fail(text, f"set it: export {source.env}=...", USAGE)
    try:
        with open(source.file or source.id, "rb") as file:
            return file.read(SECRETS_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no file name"
        text = f"the file {source.file or source.id} of --secret id={source.id}: {why}"
        raise fail(text, _EXAMPLE, USAGE) from error
