"""A control plane inside of a Python program: `pip install 'pierhead-router[server]'`.

`asgi` is its API, to be mounted below any path. Runners and engines need the root of a host, as
every registry does: `listen` gives them a port of their own. The program's signal handlers, logging
and event loop are left alone; several control planes live in one program, each on its own folder.
"""

from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from pierhead.protocol.client.inprocess import InProcess
from pierhead.protocol.errors import PierheadError, Unavailable
from pierhead.protocol.problem import problem
from pierhead.router.app import guest
from pierhead.router.compose import Router
from pierhead.router.config import Settings
from pierhead.router.domain.errors import Refused
from pierhead.router.errors import RefusedError, RouterUnavailableError
from pierhead.router.remote import RouterExecutor
from pierhead.server.problems import problem_response

_SQLITE: Final = "sqlite:///"


class EmbeddedRouter(RouterExecutor):
    """A control plane in this process, for as long as `async with` lasts; an executor of builds.

    `data_dir` belongs to it alone. `database_url` is `sqlite:///PATH`; without one the database is
    in that folder. `public_url` is how runners and engines reach it, and where image references
    lead. `listen` is the address and port on which it answers them itself; without one the program
    serves `asgi` at the root of the public URL's host. `here` also builds on this machine, if
    pierhead-runner is installed.

    Raises:
        RefusedError: another database than SQLite was asked for.
    """

    def __init__(
        self,
        *,
        data_dir: Path,
        public_url: str | None = None,
        database_url: str | None = None,
        listen: tuple[str, int] | None = None,
        here: bool = False,
        insecure_http: bool = False,
    ) -> None:
        super().__init__("http://127.0.0.1", transport=lambda: InProcess(self.asgi))
        host, port = listen or ("127.0.0.1", 0)
        self._settings = Settings(
            data=data_dir,
            database=_database(database_url),
            config=data_dir / "config",
            host=host,
            port=port,
            public_url=public_url,
            here=here and listen is not None,  # its builder comes over that port
            insecure_http=insecure_http,
        )
        self._listens = listen is not None
        self._router: Router | None = None
        self._open_until = AsyncExitStack()

    @property
    def owner_token(self) -> str:
        """The token that may do everything: for `RouterExecutor` and the command, elsewhere.

        Raises:
            RouterUnavailableError: it is not running.
        """
        self._running()
        return (self._settings.config / "token").read_text().strip()

    @property
    def public_url(self) -> str:
        """How others reach it.

        Raises:
            RouterUnavailableError: it is not running.
        """
        return self._running().url

    async def __aenter__(self) -> Self:
        try:
            opened = guest(self._settings, listens=self._listens)
            self._router = await self._open_until.enter_async_context(opened)
        except Unavailable as error:
            raise RouterUnavailableError(str(error), hint=error.problem.hint) from error
        except PierheadError as error:
            raise RefusedError(str(error), hint=error.problem.hint) from error
        except Refused as error:
            raise RefusedError(str(error), hint=error.hint) from error
        self._token = self.owner_token
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._open_until.aclose()
        self._router = None

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request; before and after `async with`, that it is not running."""
        if self._router is not None:
            await self._router.app(scope, receive, send)
            return
        text = "the control plane of this program is not running"
        away = problem("draining", text, hint="wrap the program's lifespan: async with router")
        await problem_response(away)(scope, receive, send)

    def _running(self) -> Router:
        if self._router is None:
            hint = "use it inside of: async with router"
            raise RouterUnavailableError("the control plane is not running", hint=hint)
        return self._router


def _database(url: str | None) -> Path | None:
    if url is None:
        return None
    if not url.startswith(_SQLITE) or url == _SQLITE:
        hint = "write it like sqlite:////var/lib/app/pierhead.db"
        raise RefusedError(f"only SQLite is taken so far, not {url.partition(':')[0]}", hint=hint)
    return Path(url.removeprefix(_SQLITE))
