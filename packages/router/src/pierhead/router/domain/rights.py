"""Who may do what in the registry.

An attempt pushes blobs, and manifests by digest, of its own build only. Nobody but the router, the
owner and the project moves tags, so two attempts can never race for one.
"""

from typing import assert_never

from pierhead.router.domain.token import Attempt, Owner, Principal, ProjectHolder, Puller, Runner


def may_pull(principal: Principal, repository: str) -> bool:
    """Say whether the principal may read blobs and manifests of a repository."""
    if isinstance(principal, ProjectHolder):
        return principal.project == repository
    return principal == Puller(repository) or may_push_content(principal, repository)


def may_push_content(principal: Principal, repository: str) -> bool:
    """Say whether the principal may push blobs, and manifests by digest."""
    match principal:
        case Owner():
            return True
        case ProjectHolder(project, write, environment):
            # Images are of the whole project: a token for one environment makes them by building.
            return project == repository and write and environment is None
        case Attempt(project=project, live=live):
            return live and project == repository
        case Runner() | Puller():
            return False
        case _:
            assert_never(principal)


def may_move_tag(principal: Principal, repository: str) -> bool:
    """Say whether the principal may set a tag, or delete a manifest."""
    return not isinstance(principal, Attempt) and may_push_content(principal, repository)


def only_repository(principal: Principal) -> str | None:
    """Return the one repository that the principal may know of; none: all of them."""
    match principal:
        case Owner():
            return None
        case ProjectHolder(repository) | Puller(repository) | Attempt(project=repository):
            return repository
        case Runner():
            return ""
        case _:
            assert_never(principal)


def logins_of(principal: Principal) -> str | None:
    """Return whose logins count when base images are asked for: a project's, or empty for all's.

    None: the principal gets nothing of other registries. Only who builds does: with the project's
    own token one could otherwise look at all that the owner's logins open.
    """
    match principal:
        case Owner():
            return ""
        case Attempt(project=project, live=live):
            return project if live else None
        case ProjectHolder() | Runner() | Puller():
            return None
        case _:
            assert_never(principal)
