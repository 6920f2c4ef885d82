"""Starts the service on the port that is named."""

import sys
from http.server import ThreadingHTTPServer

from service import Service

ThreadingHTTPServer(("", int(sys.argv[1])), Service).serve_forever()
