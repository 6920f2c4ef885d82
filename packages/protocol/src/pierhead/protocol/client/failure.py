"""What is said when a control plane does not answer, or is not who it should be."""

import os
import ssl
from typing import Final
from urllib.parse import urlsplit

import httpx

from pierhead.protocol.client.address import host_of
from pierhead.protocol.client.proxy import proxy_for
from pierhead.protocol.errors import Unavailable
from pierhead.protocol.loopback import is_loopback
from pierhead.protocol.problem import problem

# What the library has no words for.
_NAMELESS: Final[dict[type[httpx.HTTPError], str]] = {
    httpx.ConnectTimeout: "nobody takes the connection in time",
    httpx.ReadTimeout: "it takes too long",
    httpx.WriteTimeout: "it takes nothing any more",
    httpx.ReadError: "the connection was cut",
    httpx.WriteError: "the connection was cut",
    httpx.PoolTimeout: "too many connections are open to it already",
}
# What OpenSSL says of a certificate out of its time (X509_verify_cert_error_string(3)).
_OF_THE_TIME: Final = ("not yet valid", "has expired")
# OpenSSL's X509_V_ERR_*: DEPTH_ZERO_SELF_SIGNED_CERT, SELF_SIGNED_CERT_IN_CHAIN,
# UNABLE_TO_GET_ISSUER_CERT_LOCALLY, UNABLE_TO_VERIFY_LEAF_SIGNATURE, CERT_SIGNATURE_FAILURE,
# PATH_LENGTH_EXCEEDED: one who may not vouch for another did.
_UNKNOWN_ISSUER: Final = frozenset({18, 19, 20, 21, 7, 25})


def distrusted(error: BaseException | None) -> str | None:
    """Return why the other side's certificate was not accepted, if that is what happened."""
    refused = _refused_certificate(error)
    return refused.verify_message if refused is not None else None


def is_of_another_authority(error: BaseException | None) -> bool:
    """Say whether a certificate was not accepted because nobody who is believed signed it."""
    refused = _refused_certificate(error)
    return refused is not None and refused.verify_code in _UNKNOWN_ISSUER


def _refused_certificate(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return error
        error = error.__cause__ or error.__context__
    return None


def estranged(base_url: str, pin: str, again: str) -> Unavailable:
    """Return the error for an address that is not the control plane that was known by a pin.

    What happened there cannot be known: whoever stands in between would look the same.
    """
    detail = (
        f"{base_url} is not believed any more: the certificate authority known here, "
        f"{pin[:16]}..., did not sign what it shows. Either it was changed while this machine "
        "was away, or somebody else answers; nothing was sent"
    )
    hint = f"if pierhead ca says on the control plane that it is another one now: {again}"
    return Unavailable(problem("dependency-unavailable", detail, hint=hint))


def reason(error: httpx.HTTPError) -> str:
    """Return what happened to a request, in words for people."""
    return str(error) or _NAMELESS.get(type(error), "the connection broke off")


def unreachable(base_url: str, error: httpx.HTTPError) -> Unavailable:
    """Return the error for a request that got no answer."""
    if (reason := distrusted(error)) is not None:
        detail = f"the certificate of {base_url} is not to be trusted: {reason}"
        hint = (
            "if it has its own certificate authority: "
            f"pierhead login {base_url} --pin PIN (pierhead up prints the pin there)"
        )
        if any(word in reason for word in _OF_THE_TIME):
            hint = "compare the clocks of both machines: date"
        return Unavailable(problem("dependency-unavailable", detail, hint=hint))
    return unanswered(base_url, error)


def unanswered(base_url: str, error: httpx.HTTPError) -> Unavailable:
    """Return the error for an address where nobody answers, or stops in between."""
    why = reason(error)
    detail = f"no answer from {base_url}: {why}"
    hint = None
    if (proxy := proxy_for(base_url, os.environ)) is not None:
        way = urlsplit(proxy)  # it may have a password in it
        shown = f"{way.hostname}:{way.port}" if way.port else way.hostname
        detail = f"no answer from {base_url} by the proxy {shown}: {why}"
        hint = f"is HTTPS_PROXY right? NO_PROXY={host_of(base_url)} asks without one"
    elif isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        here = is_loopback(host_of(base_url))
        where = "on this machine" if here else "on its machine, if it is not running there"
        hint = f"pierhead up starts the control plane {where}"
    return Unavailable(problem("dependency-unavailable", detail, hint=hint))
