"""A control plane whose certificate is not to be trusted is nobody to work around."""

import ssl
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from pierhead.router import (
    BuildRequest,
    DirectoryContext,
    ImageInfo,
    IntegrityError,
    OnEvent,
    RoutedImageBuilder,
    RouterExecutor,
)


class Impostor(httpx.AsyncBaseTransport):
    """Somebody who answers with a certificate of his own."""

    def __init__(self) -> None:
        self.asked = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        distrust = ssl.SSLCertVerificationError()
        distrust.verify_message = "self-signed certificate"
        raise httpx.ConnectError("handshake failed") from distrust


class NobodysBuilder:
    """A builder on this machine that must not be used."""

    async def build(self, request: BuildRequest, *, on_event: OnEvent | None = None) -> ImageInfo:
        raise AssertionError("it was built locally")


async def test_an_impostor_is_told_at_once_and_not_built_around(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    impostor = Impostor()
    executor = RouterExecutor(
        "https://build.example.com",
        token="t",
        patience=timedelta(minutes=2),
        transport=lambda: impostor,
    )
    request = BuildRequest(context=DirectoryContext(path=tmp_path), project="acme/web")

    with pytest.raises(IntegrityError, match="self-signed certificate") as refused:
        await RoutedImageBuilder(executor, local=NobodysBuilder()).build(request)

    assert "PIERHEAD_CA" in (refused.value.hint or "")
    assert not refused.value.retryable
    assert impostor.asked == 1
