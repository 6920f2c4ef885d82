"""Which build arguments look like secrets: by their name, or by the form of their value.

A build argument stays readable in the image's history, so one that holds a secret gives it to
whoever may pull the image. Names are looked at word by word: KEYBOARD is not a KEY.

What is not here: certainty. Whoever knows better says so (`--allow-secret-args`).
"""

import re
from collections.abc import Mapping
from typing import Final

from pierhead.protocol.ids import SECRET_PATTERN
from pierhead.router.domain.errors import SecretArgument

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# fmt: off
_SECRET_WORDS: Final = frozenset([
    "CRED", "CREDENTIAL", "CREDENTIALS", "CREDS", "NETRC", "NPMRC", "PASSCODE", "PASSWRD", "PSWD",
    "PYPIRC", "SECRETS",
])
# Also what is written together with something before it: PGPASSWORD, AWSSECRETKEY.
_SECRET_WORD_ENDS: Final = (
    "ACCESSKEY", "APIKEY", "DBPASS", "DBPW", "DBPWD", "DOCKERCONFIGJSON", "PASSPHRASE", "PASSWD",
    "PASSWORD", "PRIVATEKEY", "ROOTPASS", "SECRET", "SECRETKEY", "SSHKEY", "SSHPASS", "TOKEN",
    "USERPASS",
)
# At the end of a name these are the thing itself; in the middle they are about something else.
_SECRET_ENDS: Final = frozenset(["BEARER", "KEY", "PASS", "PSW", "PW"])
# Alone they mean something harmless: the working directory, say.
_SECRET_ENDS_OF_LONGER: Final = frozenset(["AUTH", "PAT", "PWD", "SALT"])
# Half of a pair is as good as the name of the account.
_SECRET_IDS: Final = (("ACCESS", "KEY", "ID"), ("ACCESSKEY", "ID"))
# How a value is written, and which one it is, does not change what it is: SSH_KEY_B64, API_KEY_V2.
_WRITTEN_AS: Final = frozenset(["B", "BASE", "DER", "HEX", "JSON", "PEM", "RAW", "V", "VALUE"])
# A name that ends so is about a secret and does not hold it: TOKEN_URL, SECRET_NAME.
_ABOUT: Final = frozenset([
    "ALGORITHM", "COUNT", "DIR", "DIRECTORY", "ENABLED", "ENDPOINT", "EXPIRY", "FILE", "FOLDER",
    "FORMAT", "HEADER", "HOST", "ID", "IDS", "ISSUER", "LENGTH", "LIFETIME", "LIMIT", "NAME",
    "NAMES", "PATH", "POLICY", "PREFIX", "SIZE", "TTL", "TYPE", "URI", "URL", "USER", "USERNAME",
    "VERSION",
])
# fmt: on
_PUBLIC_WORDS: Final = frozenset(["PUB", "PUBLIC", "PUBLISHABLE"])
_PUBLIC_KEYS: Final = frozenset(["CACHE", "FOREIGN", "PARTITION", "PRIMARY", "SORT"])
_NOTHING: Final = re.compile(r"(true|false|yes|no|on|off|none|null|\d{0,5})\Z", re.I)
# Compiled with the first value, and kept by `re`: few builds have one. A value may be anybody's, so
# none of these looks at a character again for each place before it: of a JSON Web Token the first
# `eyJ` of a word decides, because whatever follows a later one also follows that.
_VALUES: Final = "|".join(
    (
        r"-----BEGIN [A-Z ]*PRIVATE KEY( BLOCK)?-----",
        r"\bAGE-SECRET-KEY-1",
        r"\b(AKIA|ASIA)[A-Z0-9]{16}\b",
        r"\bAIza[\w-]{35}",
        r"\bhv[sb]\.[\w-]{20,}",
        r"\bdapi[a-f0-9]{32}\b",
        r"\bshp(at|ca|pa|ss)_[A-Fa-f0-9]{32}",
        r"\b\d{8,10}:AA[\w-]{33}\b",
        r"\bhooks\.slack\.com/services/\w+/\w+/\w+",
        r"\bdiscord(app)?\.com/api/webhooks/\d+/[\w-]+",
        r"(?i:\b(password|passwd|pwd|accountkey|sharedaccesskey))=(?!\$)[^\s;&]{4,}",
        r"\bgh[opsur]_[A-Za-z0-9]{30,}",
        r"\bgithub_pat_\w{22,}",
        r"\bgl(pat|rt|dt|cbt)-[\w-]{20,}",
        r"\bnpm_[A-Za-z0-9]{30,}",
        r"\bpypi-[\w-]{40,}",
        r"\bdckr_pat_[\w-]{20,}",
        r"\bdop_v1_[a-f0-9]{40,}",
        r"\bhf_[A-Za-z0-9]{30,}",
        r"\bxox[abeoprs]-[\w-]{10,}",
        r"\b[rs]k_(live|test)_\w{16,}",
        r"\bsk-[A-Za-z0-9][\w-]{30,}",
        r"\bSG\.[\w-]{16,}\.[\w-]{16,}",
        r"(?<![\w-])(?>[\w-]*?\beyJ)[\w-]{8,}+\.eyJ[\w-]{8,}+\.[\w-]{8,}",
        r"\bph[bopr]_[\w.-]{20,}",
        r"\w://[^\s/:@]*:[^\s/@]+@",
    )
)


def looks_secret(name: str, value: str) -> bool:
    """Say whether a build argument looks like a secret."""
    if re.search(_VALUES, value):
        return True
    return not _NOTHING.match(value.strip()) and _names_a_secret(_words(name))


def require_no_secret(arguments: Mapping[str, str]) -> None:
    """Let build arguments pass that do not look like secrets.

    Raises:
        SecretArgument: one does; the hint is what to type instead.
    """
    found = next((name for name in sorted(arguments) if looks_secret(name, arguments[name])), None)
    if found is None:
        return
    name = _id_for(found)
    command = "npm ci" if name == "npm" else "COMMAND"
    hint = (
        f"pierhead build --secret id={name},env={found} .   and in the Dockerfile: "
        f"RUN --mount=type=secret,id={name},env={found} {command}\n"
        "      (really not a secret: --allow-secret-args)"
    )
    detail = f"{found} looks like a secret, and build arguments stay readable in the image"
    raise SecretArgument(detail, hint=hint)


def _words(name: str) -> list[str]:
    return [word.upper() for word in _WORD.findall(name)]


def _names_a_secret(words: list[str]) -> bool:
    while len(words) > 1 and (words[-1] in _WRITTEN_AS or words[-1].isdigit()):
        words = words[:-1]
    if any(tuple(words[-len(one) :]) == one for one in _SECRET_IDS):
        return True
    if not words or words[-1] in _ABOUT or _PUBLIC_WORDS.intersection(words):
        return False
    if any(map(_is_secret, words)):
        return True
    if words[-1] in _SECRET_ENDS_OF_LONGER:
        return len(words) > 1
    return words[-1] in _SECRET_ENDS and not _PUBLIC_KEYS.intersection(words)


def _is_secret(word: str) -> bool:
    return word in _SECRET_WORDS or word.endswith(_SECRET_WORD_ENDS)


def _id_for(name: str) -> str:
    """Return a short name for the secret: NPM_TOKEN becomes npm."""
    words = _words(name)
    ends = _SECRET_ENDS | _SECRET_ENDS_OF_LONGER
    kept = [word for word in words if word not in ends and not _is_secret(word)] or words
    made = "-".join(kept).lower()
    return made if re.match(SECRET_PATTERN, made) else "secret"
