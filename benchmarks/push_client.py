"""Pushes one blob by parts, as a runner does: `python -m benchmarks.push_client HOST:PORT TOKEN
REPOSITORY BYTES NUMBER [CA]`. A process of its own, so that who measures beside it is not held up.
By TLS when there is a file with the certificate of an authority.
"""

import hashlib
import http.client
import os
import ssl
import sys

PART_BYTES = 8 * 1024 * 1024


def connect(address: str, ca: str | None) -> http.client.HTTPConnection:
    if ca is None:
        return http.client.HTTPConnection(address, timeout=600)
    trusted = ssl.create_default_context(cafile=ca)
    return http.client.HTTPSConnection(address, timeout=600, context=trusted)


def main(address: str, token: str, repository: str, size: int, number: int, ca: str | None) -> None:
    part = hashlib.shake_128(str(number).encode()).digest(PART_BYTES)
    connection = connect(address, ca)
    headers = {"Authorization": f"Bearer {token}"}

    def call(method: str, path: str, body: bytes = b"") -> str:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        said = answer.read()
        assert answer.status < 300, said
        return answer.headers["Location"]

    location = call("POST", f"/v2/{repository}/blobs/uploads/")
    running = hashlib.sha256()
    for offset in range(0, size, PART_BYTES):
        piece = part[: size - offset]
        running.update(piece)
        location = call("PATCH", location, piece)
    call("PUT", f"{location}?digest=sha256:{running.hexdigest()}")


if __name__ == "__main__":
    os.nice(10)  # it stands for another machine, and must not take this one's time from others
    place, secret, name, length, which, *authority = sys.argv[1:]
    main(place, secret, name, int(length), int(which), authority[0] if authority else None)
