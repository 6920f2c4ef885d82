"""What router, runner and client say to each other: models, digests, problems, and the client.

The modules are imported by name. Nothing is re-exported here, because the client needs an HTTP
library and the models must stay usable in code that does no I/O.
"""
