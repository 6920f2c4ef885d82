"""`pierhead projects`: projects, their environments and their tokens."""

import sys
from typing import Annotated

import typer

from pierhead.protocol.cli.given import AsJson, Limit, Url, formed, one_of
from pierhead.protocol.cli.speak import USAGE, fail, give, give_json, tell
from pierhead.protocol.ids import EnvironmentName, ProjectName
from pierhead.protocol.project import Ability, NewEnvironment, NewProject, Removal, TokenName
from pierhead.protocol.units import counted
from pierhead.router.cli.tokens import After, Expires, TokenId, ask, list_tokens, make_token

app = typer.Typer(no_args_is_help=True, add_completion=False)
environments = typer.Typer(no_args_is_help=True, add_completion=False)
tokens = typer.Typer(no_args_is_help=True, add_completion=False)
app.add_typer(environments, name="env", help="Environments of a project.")
app.add_typer(tokens, name="tokens", help="Tokens of a project.")
Name = Annotated[str, typer.Argument(help="Name of the project", callback=formed(ProjectName))]
Environment = Annotated[
    str, typer.Argument(help="Name of the environment", callback=formed(EnvironmentName))
]
AfterProject = Annotated[
    str | None, typer.Option(help="Go on after this one", callback=formed(ProjectName))
]
AfterEnvironment = Annotated[
    str | None, typer.Option(help="Go on after this one", callback=formed(EnvironmentName))
]


@app.command("ls")
def list_projects(
    limit: Limit = 50, after: AfterProject = None, as_json: AsJson = False, url: Url = None
) -> None:
    """List projects."""
    page = ask(url, lambda client: client.projects(limit=limit, after=after))
    if as_json:
        give_json(page)
        return
    give(f"{'NAME':30} {'BUILDS':>6}  TRUSTED")
    for project in page.projects:
        give(f"{project.name:30} {project.builds:6}  {'yes' if project.trusted else 'no'}")
    if page.next:
        tell(f"more: pierhead projects ls --after {page.next}")


@app.command()
def add(
    name: Name,
    untrusted: Annotated[
        bool, typer.Option("--untrusted", help="Build only where builds are isolated")
    ] = False,
    url: Url = None,
) -> None:
    """Make a project, or change one."""
    wanted = NewProject(name=name, trusted=not untrusted)
    ask(url, lambda client: client.add_project(wanted))
    tell(f"project {name} is {'not trusted' if untrusted else 'trusted'}")


@app.command()
def show(name: Name, as_json: AsJson = False, url: Url = None) -> None:
    """Show one project."""
    view = ask(url, lambda client: client.project(name))
    if as_json:
        give_json(view)
        return
    give(f"name      {view.name}")
    give(f"builds    {view.builds}")
    give(f"trusted   {'yes' if view.trusted else 'no'}")
    give(f"since     {view.created_at}")


@app.command()
def remove(
    name: Name,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what would go")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask")] = False,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """Remove a project with its builds, images and tokens."""
    if not plan and not yes:
        _confirm(name, ask(url, lambda client: client.remove_project(name, plan=True)))
    removal = ask(url, lambda client: client.remove_project(name, plan=plan))
    if as_json:
        give_json(removal)
        return
    give(f"{'removed' if removal.done else 'would remove'} {name}: {_what(removal)}")


@environments.command("ls")
def list_environments(
    project: Name,
    limit: Limit = 50,
    after: AfterEnvironment = None,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """List the environments of a project."""
    page = ask(url, lambda client: client.environments(project, limit=limit, after=after))
    if as_json:
        give_json(page)
        return
    give(f"{'NAME':30} {'BUILDS':>6}  PREVIEW")
    for one in page.environments:
        give(f"{one.name:30} {one.builds:6}  {'yes' if one.preview else 'no'}")
    if page.next:
        tell(f"more: pierhead projects env ls {project} --after {page.next}")


@environments.command("add")
def add_environment(
    project: Name,
    name: Environment,
    preview: Annotated[bool, typer.Option("--preview", help="It gets less trust")] = False,
    url: Url = None,
) -> None:
    """Make an environment, or change one."""
    wanted = NewEnvironment(project=project, name=name, preview=preview)
    ask(url, lambda client: client.add_environment(wanted))
    tell(f"{project} has the environment {name}{', a preview' if preview else ''}")


@environments.command("remove")
def remove_environment(project: Name, name: Environment, url: Url = None) -> None:
    """Forget an environment and revoke its tokens; its builds stay."""
    ask(url, lambda client: client.remove_environment(project, name))
    tell(f"{project} has no environment {name} any more")


@tokens.command("add")
def add_token(
    project: Name,
    name: Annotated[
        str, typer.Option("--name", help="What it is for", callback=formed(TokenName))
    ] = "cli",
    ability: Annotated[
        str,
        typer.Option(help="read, or write: also submit and push", callback=one_of("write", "read")),
    ] = "write",
    environment: Annotated[
        str | None,
        typer.Option(help="Only builds of this one", callback=formed(EnvironmentName)),
    ] = None,
    expires: Expires = None,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """Make a token for one project; it is shown once."""
    able: Ability = "write" if ability == "write" else "read"
    made = make_token(
        url, name=name, project=project, ability=able, environment=environment, expires=expires
    )
    if as_json:
        give_json(made)
        return
    give(made.token)
    ends = f"ends {made.view.expires_at}" if made.view.expires_at else "never ends"
    tell(f"{made.view.id} ({able}, {ends}); it is not shown again")


@tokens.command("ls")
def list_project_tokens(
    project: Name,
    limit: Limit = 50,
    after: After = None,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """List the tokens of a project, newest first; never what they are."""
    list_tokens(url, project, limit=limit, after=after, as_json=as_json)


@tokens.command("revoke")
def revoke_token(
    token_id: Annotated[
        str, typer.Argument(help="Id, as `tokens ls` shows it", callback=formed(TokenId))
    ],
    url: Url = None,
) -> None:
    """End a token, at once."""
    view = ask(url, lambda client: client.revoke_token(token_id))
    tell(f"{view.id} ({view.name}) opens nothing any more")


def _confirm(name: str, removal: Removal) -> None:
    """Ask before anything goes; without a terminal nobody can answer."""
    tell(f"{name}: {_what(removal)} would go, for good")
    if not sys.stdin.isatty():
        raise fail("nobody was asked", f"pierhead projects remove {name} --yes", USAGE)
    if typer.prompt("Type the project's name to remove it", default="", err=True) != name:
        raise fail("nothing was removed", f"pierhead projects remove {name} --plan")


def _what(removal: Removal) -> str:
    counts = {
        "build": removal.builds,
        "image": removal.images,
        "tag": removal.tags,
        "environment": removal.environments,
        "token": removal.tokens,
    }
    return ", ".join(counted(count, what) for what, count in counts.items())
