"""Pushes one blob by parts, as a runner does: `python -m benchmarks.push_client HOST:PORT TOKEN
REPOSITORY BYTES NUMBER`. A process of its own, so that who measures beside it is not held up.
"""

import hashlib
import http.client
import os
import sys

PART_BYTES = 8 * 1024 * 1024


def main(address: str, token: str, repository: str, size: int, number: int) -> None:
    part = hashlib.shake_128(str(number).encode()).digest(PART_BYTES)
    connection = http.client.HTTPConnection(address, timeout=600)
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
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
