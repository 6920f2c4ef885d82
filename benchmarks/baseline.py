"""What the machine can do at best: a POST over loopback that commits one row to SQLite.

The same server, the same database layer and the same durability as the router, and nothing else:
`python -m benchmarks.baseline PORT DATABASE`.
"""

import asyncio
import sys
from pathlib import Path

import sqlalchemy as sa
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pierhead.server.serve import Service, listen, serve
from pierhead.server.sql import Database

ROWS = sa.Table(
    "row", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("body", sa.Text)
)


async def main(port: int, path: Path) -> None:
    database = Database(path)
    await database.write(lambda connection: ROWS.metadata.create_all(connection))

    async def post(request: Request) -> Response:
        body = await request.json()
        values = {"body": str(body)}
        await database.write(lambda connection: connection.execute(sa.insert(ROWS), values))
        return JSONResponse({"stored": True})

    app = Starlette(routes=[Route("/rows", post, methods=["POST"])])
    try:
        await serve(Service(app, drain=lambda: None), [listen("127.0.0.1", port)])
    finally:
        await database.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(int(sys.argv[1]), Path(sys.argv[2])))
