"""Base images from the control plane, over HTTP, with the token of the build."""

import contextlib
import functools
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

import httpx

from pierhead.protocol.client.failure import reason
from pierhead.protocol.client.http import open_client
from pierhead.protocol.client.retry import patiently
from pierhead.protocol.client.trust import Trust
from pierhead.protocol.errors import IntegrityError, PierheadError, Unavailable
from pierhead.protocol.problem import problem
from pierhead.runner.domain.bases import BaseRefusal
from pierhead.runner.ports import BaseAnswer, BaseAsk

PATIENCE_SECONDS: Final = 60.0
CUTS_MAX: Final = 5
ANSWER_BYTES_MAX: Final = 64 * 1024
_PIECE_BYTES: Final = 256 * 1024
_KEPT: Final = ("content-type", "content-length", "docker-content-digest")
_STALE: Final = "pierhead-stale-since"


class HttpBases:
    """What the control plane gives to one build: of its own registry, and of others."""

    def __init__(self, url: str, token: str, trust: Trust) -> None:
        self._own = urlsplit(url).netloc
        self._http = open_client(url, token=token, ca=trust)

    @asynccontextmanager
    async def ask(self, wanted: BaseAsk) -> AsyncIterator[BaseAnswer]:
        """Give the answer to a request; its bytes go on over cuts.

        Raises:
            Unavailable: the control plane does not answer for a while, or does not go on after a
                cut, for the reason that it then says.
            IntegrityError: it says that a registry lied; another try would only repeat that.
        """
        async with AsyncExitStack() as opened:
            answer = await patiently(lambda: self._send(wanted, None, opened), PATIENCE_SECONDS)
            if not answer.is_success:
                refusal = _refusal(wanted, answer.status_code, await _small(answer))
                yield BaseAnswer(status=answer.status_code, headers={}, refusal=refusal)
                return
            headers = {name: answer.headers[name] for name in _KEPT if name in answer.headers}
            yield BaseAnswer(
                status=200,
                headers=headers,
                chunks=self._whole(wanted, answer, opened),
                stale_since=answer.headers.get(_STALE),
            )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def _send(
        self, wanted: BaseAsk, offset: int | None, opened: AsyncExitStack
    ) -> httpx.Response:
        params: Mapping[str, str] = {} if wanted.host == self._own else {"ns": wanted.host}
        request = self._http.build_request(
            wanted.method,
            f"/v2/{wanted.name}/{wanted.kind}/{wanted.reference}",
            params=params,
            headers=_headers(offset),
        )
        try:
            answer = await self._http.send(request, stream=True)
        except httpx.HTTPError as error:
            raise _away(error) from error
        opened.push_async_callback(answer.aclose)
        return answer

    async def _whole(
        self, wanted: BaseAsk, answer: httpx.Response, opened: AsyncExitStack
    ) -> AsyncIterator[bytes]:
        """Yield all bytes; after a cut, go on from where it was."""
        offset = 0
        for _ in range(CUTS_MAX):
            with contextlib.suppress(httpx.HTTPError):
                async for chunk in answer.aiter_raw(_PIECE_BYTES):
                    offset += len(chunk)
                    yield chunk
                return
            again = functools.partial(self._send, wanted, offset, opened)
            answer = await patiently(again, PATIENCE_SECONDS)
            if not answer.is_success:
                said = _refusal(wanted, answer.status_code, await _small(answer))
                raise _cut_for(answer.status_code, said)
            if answer.status_code != 206 and offset:
                break
        detail = f"a part of it breaks off on its way from {wanted.host}, again and again"
        raise Unavailable(problem("dependency-unavailable", detail, hint="build again"))


def _headers(offset: int | None) -> dict[str, str]:
    """Return what to send at first, and after a cut: even at the begin, it then says so."""
    plain = {"Accept-Encoding": "identity"}
    return plain if offset is None else {**plain, "Range": f"bytes={offset}-"}


async def _small(answer: httpx.Response) -> bytes:
    found = b""
    async for chunk in answer.aiter_raw(ANSWER_BYTES_MAX):
        found += chunk
        if len(found) > ANSWER_BYTES_MAX:
            break
    return found


def _refusal(wanted: BaseAsk, status: int, body: bytes) -> BaseRefusal:
    """Return why, in the control plane's own words."""
    image = f"{wanted.host}/{wanted.name}"
    try:
        said = json.loads(body)["errors"][0]
        message, hint = str(said["message"]), said.get("detail", {}).get("hint")
    except (ValueError, LookupError, TypeError, AttributeError):
        return BaseRefusal(image=image, message=f"the control plane answers with status {status}")
    return BaseRefusal(image=image, message=message, hint=str(hint) if hint else None)


def _cut_for(status: int, said: BaseRefusal) -> PierheadError:
    """Return why nothing comes after a cut."""
    if status == httpx.codes.BAD_REQUEST:  # the request is the one that was answered before
        return IntegrityError(problem("digest-mismatch", said.message, hint=said.hint))
    return Unavailable(problem("dependency-unavailable", said.message, hint=said.hint))


def _away(error: httpx.HTTPError) -> Unavailable:
    detail = f"the control plane does not answer: {reason(error)}"
    return Unavailable(problem("dependency-unavailable", detail))
