"""Which build arguments are taken for secrets: by words of the name, or the form of the value."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pierhead.router.domain.errors import SecretArgument
from pierhead.router.domain.secretlike import looks_secret, require_no_secret

# Put together here, so that no scanner takes this file for a leak.
A, D = "aB3" * 14, "0f9" * 16
# fmt: off
SECRET_NAMES = [
    "TOKEN", "NPM_TOKEN", "npm_token", "GITHUB_TOKEN", "token", "authToken", "githubAccessToken",
    "GH_PAT", "NPM_AUTH", "SECRET", "SECRET_KEY_BASE", "client-secret", "DJANGO_SECRET_KEY",
    "JWT_SECRETS", "PASSWORD", "DB_PASSWORD", "DBPassword", "POSTGRES_PASSWD", "DB_PWD",
    "DB_PASS", "PASSPHRASE", "API_KEY", "apiKey", "APIKEY", "STRIPE_KEY", "KEY",
    "SSH_PRIVATE_KEY", "SIGNING_KEY", "RAILS_MASTER_KEY", "AWS_SECRET_ACCESS_KEY",
    "GCP_CREDENTIALS", "SENTRY_AUTH_TOKEN", "AUTH_TOKEN_V2", "PW", "DB_PW", "dbPw", "ROOT_PW",
    "PSWD", "DB_PSW", "AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY", "AWS_SECRET", "AWS_SECRET_KEY",
    "AWS_SESSION_TOKEN", "awsAccessKeyId", "CREDS", "DB_CREDS", "GIT_CRED", "PASSCODE",
    "PGPASSWORD", "SSHPASS", "AWSSECRETKEY", "MYSQLPASSWORD", "GITHUBTOKEN", "ACCESSKEY",
    "SSH_PRIVATE_KEY_B64", "SIGNING_KEY_BASE64", "TLS_KEY_PEM", "API_KEY_V2", "API_KEY_2",
    "SERVICE_ACCOUNT_KEY_JSON", "NPMRC", "NETRC", "PYPIRC", "DOCKERCONFIGJSON", "PASSWORD_SALT",
    "AUTH_SALT", "BEARER", "PASSWORD_HASH", "ENCRYPTION_KEY", "LICENSE_KEY", "WEBHOOK_SECRET",
]
HARMLESS_NAMES = [
    "KEYBOARD", "KEYBOARD_LAYOUT", "MONKEY", "PUBLIC_KEY_URL", "PUBLIC_KEY",
    "NEXT_PUBLIC_API_KEY", "TOKENIZER", "MAX_TOKENS", "TOKEN_URL", "TOKEN_ENDPOINT",
    "SECRET_NAME", "SECRET_FILE", "KEY_PATH", "KEY_ID", "AWS_REGION", "CACHE_KEY", "PRIMARY_KEY",
    "OLDPWD", "PW_VERSION", "PWA", "PWA_NAME", "CREDIT", "CREDO", "ACCREDITED", "SALT",
    "SALT_VERSION",
    "ACCESS_LOG", "ACCESS_ID", "CLIENT_ID", "JSON", "BASE", "B64", "BASE_IMAGE", "VALUE",
    "MAX_TOKENS_2", "SORT_KEY_V2", "SSH_KEY_PUB", "TURKEY", "HOTKEY", "TRESPASS", "BEARER_FORMAT",
    "NPMRC_PATH", "TOKENIZERS_PARALLELISM", "GITHUB_SHA", "OTP_VERSION", "PASSIVE", "KEYS_DIR",
    "SORT_KEY", "PWD", "PATH", "PASSENGER", "BYPASS", "COMPASS", "AUTHOR", "AUTH", "PAT", "PATCH",
    "VERSION", "PASSWORD_LENGTH", "STRIPE_PUBLISHABLE_KEY", "SSH_PUB_KEY", "NODE_ENV",
    "KEYCLOAK_HOST", "SECRETARY",
]
# fmt: on
SECRET_VALUES = [
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl",
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN PGP PRIVATE KEY BLOCK-----",
    "AKIA" + "IOSFODNN7EXAMPLE",
    "AI" + "za" + "a" * 35,
    "hv" + "s." + A,
    "https://hooks.slack" + ".com/services/T00/B00/abcd",
    "Server=db;User Id=sa;Pass" + "word=hunter2;",
    "DefaultEndpointsProtocol=https;Account" + "Key=" + A,
    "12345678" + "9:AA" + "b" * 33,
    "ghp" + "_" + A,
    "github" + "_pat_" + A,
    "glpat" + "-" + A,
    "npm" + "_" + A,
    "pypi" + "-" + A,
    "dckr" + "_pat_" + A,
    "xox" + "b-" + A,
    "sk" + "_live_" + A,
    "sk" + "-" + A,
    "SG." + A + "." + A,
    "eyJ" + A + ".eyJ" + A + "." + A,
    "pho" + "_" + A,
    "postgres://user:pass" + "word@db/app",
    "redis://:pass" + "word@cache",
    "https://x-access-token:" + A + "@forge.example/a.git",
]
HARMLESS_VALUES = [
    "",
    "production",
    "https://forge.example/a.git",
    "git@forge.example:a/b.git",
    "-----BEGIN CERTIFICATE-----",
    "ssh-ed25519 " + A,
    D,  # a commit
    "sha256:" + D,
    "npm_config_cache",
    "http://localhost:8080/a@b",
    "-----BEGIN PGP PUBLIC KEY BLOCK-----",
    "password=$PASSWORD",
    "host=db;user=sa",
    "AKIA",
    "https://hooks.example/services/T00/B00/abcd",
]


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_name_with_the_word_for_it_is_a_secret(name: str) -> None:
    assert looks_secret(name, "s0mething-l0ng")


@pytest.mark.parametrize("name", HARMLESS_NAMES)
def test_a_name_that_only_has_the_letters_is_none(name: str) -> None:
    assert not looks_secret(name, "s0mething-l0ng")


@pytest.mark.parametrize("value", ["", " ", "true", "False", "off", "none", "0", "8080"])
def test_a_name_is_no_secret_when_the_value_can_be_none(value: str) -> None:
    assert not looks_secret("USE_AUTH_TOKEN", value)


@pytest.mark.parametrize("value", SECRET_VALUES)
def test_a_value_of_a_known_form_is_a_secret_under_any_name(value: str) -> None:
    assert looks_secret("HARMLESS", value)


@pytest.mark.parametrize("value", HARMLESS_VALUES)
def test_other_values_are_none(value: str) -> None:
    assert not looks_secret("HARMLESS", value)


def test_the_refusal_says_what_to_type_and_not_the_value() -> None:
    with pytest.raises(SecretArgument) as refused:
        require_no_secret({"A": "1", "NPM_TOKEN": "hunter2-hunter2"})

    assert str(refused.value).startswith("NPM_TOKEN looks like a secret")
    assert "--secret id=npm,env=NPM_TOKEN" in (refused.value.hint or "")
    assert "hunter2" not in str(refused.value) + (refused.value.hint or "")


@pytest.mark.parametrize(
    ("name", "secret_id"),
    [("NPM_TOKEN", "npm"), ("TOKEN", "token"), ("dbPassword", "db"), ("API_KEY", "api")],
)
def test_the_secret_gets_a_short_name(name: str, secret_id: str) -> None:
    with pytest.raises(SecretArgument, match="looks like") as refused:
        require_no_secret({name: "s0mething"})

    hint = refused.value.hint or ""
    assert f"--secret id={secret_id},env={name} ." in hint
    assert f"RUN --mount=type=secret,id={secret_id},env={name} " in hint


@given(st.text("eyJ.-_ a1~", max_size=80))
def test_a_web_token_is_known_wherever_in_a_value_it_is(text: str) -> None:
    plainly = re.search(r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}", text) is not None

    assert looks_secret("HARMLESS", text) == plainly


@given(st.text(" \t\n\x1c\u20030127truFALSEone", max_size=12))
def test_a_value_can_be_none_with_any_space_around_it(text: str) -> None:
    plainly = re.match(r"\s*(true|false|yes|no|on|off|none|null|\d{0,5})\s*\Z", text, re.I)

    assert looks_secret("TOKEN", text) == (plainly is None)


@pytest.mark.parametrize("value", [" " * 1_000_000 + "x", "eyJ-" * 250_000, "a://:" * 200_000])
def test_a_long_value_is_read_once(value: str) -> None:
    assert not looks_secret("HARMLESS", value)
    assert looks_secret("TOKEN", value)
