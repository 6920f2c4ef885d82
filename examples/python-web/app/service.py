"""Says hello, and that it is well."""

import json
import os
from http.server import BaseHTTPRequestHandler


def answer(path: str) -> tuple[int, dict[str, str]]:
    """Return the status and the document for a path."""
    match path:
        case "/":
            version = os.environ.get("VERSION", "unknown")
            return 200, {"greeting": "hello", "version": version, "user": str(os.getuid())}
        case "/healthz":
            return 200, {"state": "well"}
        case _:
            return 404, {"error": f"there is no {path}"}


class Service(BaseHTTPRequestHandler):
    """One request."""

    def do_GET(self) -> None:
        """Answer with JSON."""
        status, document = answer(self.path)
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
