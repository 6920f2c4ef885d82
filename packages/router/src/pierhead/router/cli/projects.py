"""`pierhead projects`: projects and their tokens."""

import asyncio
from typing import Annotated

import typer

from pierhead.protocol.cli.place import find_place
from pierhead.protocol.cli.speak import give, give_json, tell
from pierhead.protocol.meta import NewProject, ProjectPage

app = typer.Typer(no_args_is_help=True, add_completion=False)
Name = Annotated[str, typer.Argument(help="Name of the project")]
Url = Annotated[str | None, typer.Option(help="Control plane")]


@app.command("ls")
def list_projects(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON")] = False, url: Url = None
) -> None:
    """List projects."""
    page = asyncio.run(_list(url))
    if as_json:
        give_json(page)
        return
    give(f"{'NAME':30} {'BUILDS':>6}  TRUSTED")
    for project in page.projects:
        give(f"{project.name:30} {project.builds:6}  {'yes' if project.trusted else 'no'}")


@app.command()
def add(
    name: Name,
    untrusted: Annotated[
        bool, typer.Option("--untrusted", help="Build only where builds are isolated")
    ] = False,
    url: Url = None,
) -> None:
    """Make a project, or change one."""
    asyncio.run(_add(name, untrusted, url))
    tell(f"project {name} is {'not trusted' if untrusted else 'trusted'}")


@app.command()
def token(name: Name, url: Url = None) -> None:
    """Make a token for one project; it is shown once."""
    give(asyncio.run(_token(name, url)))


async def _list(url: str | None) -> ProjectPage:
    async with find_place(url).client() as client:
        return await client.projects()


async def _add(name: str, untrusted: bool, url: str | None) -> None:
    async with find_place(url).client() as client:
        await client.add_project(NewProject(name=name, trusted=not untrusted))


async def _token(name: str, url: str | None) -> str:
    async with find_place(url).client() as client:
        return (await client.add_project_token(name)).token
