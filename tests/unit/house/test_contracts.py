"""Each import contract can be broken: it notices an import that it forbids.

A contract that can only pass checks nothing. That all of them hold is what `lint-imports` says.
"""

import copy
from typing import Any

import grimp
import pytest
from importlinter.api import read_configuration
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract
from importlinter.contracts.protected import ProtectedContract
from importlinter.domain.contract import Contract

from tests.unit.house.tree import ROOT

KINDS: dict[str, type[Contract]] = {
    "layers": LayersContract,
    "forbidden": ForbiddenContract,
    "protected": ProtectedContract,
}
CONFIGURATION: dict[str, Any] = read_configuration(str(ROOT / "pyproject.toml"))
CONTRACTS: dict[str, dict[str, Any]] = {
    options["name"]: options for options in CONFIGURATION["contracts_options"]
}

# For each contract, by the beginning of its name: who imports what.
BREAKAGES = [
    ("Distributions", "pierhead.runner", "pierhead.router.domain.build"),
    ("Distributions", "pierhead.protocol.plan", "pierhead.server.sql"),
    ("Distributions", "pierhead.server.sql", "pierhead.router.domain.build"),
    ("What runs elsewhere", "pierhead.runner", "pierhead.server.blobs"),
    ("Protocol", "pierhead.protocol.plan", "pierhead.protocol.client.client"),
    ("Server", "pierhead.server.sql", "pierhead.server.serve"),
    ("Router: composition", "pierhead.router.services.submit", "pierhead.router.http.builds"),
    ("Router: composition", "pierhead.router.ports.logs", "pierhead.router.services.submit"),
    ("Router, the ports", "pierhead.router.ports.images", "pierhead.router.ports.builds"),
    ("Router, the import", "pierhead.router.outcome", "pierhead.router.events"),
    ("The import needs", "pierhead.router.remote", "pierhead.router.domain.build"),
    ("The import needs", "pierhead.router.testing", "starlette"),
    ("Router: rules", "pierhead.router.domain.errors", "pierhead.router.domain.build"),
    ("Runner: composition", "pierhead.runner.ports", "pierhead.runner.engine"),
    ("Runner: rules", "pierhead.runner.domain.progress", "pierhead.runner.domain.failure"),
    ("Runner, buildah", "pierhead.runner.adapters.home", "pierhead.runner.adapters.attempt"),
    ("Domains are pure", "pierhead.router.domain.build", "time"),
    ("Domains are pure", "pierhead.router.domain.token", "uuid"),
    ("Domains are pure", "pierhead.protocol.plan", "httpx"),
    ("Only the composition roots", "pierhead.router.http.builds", "pierhead.router.adapters.clock"),
    ("Only the composition roots", "pierhead.runner.engine", "pierhead.runner.adapters.keeper"),
    ("Adapters serve ports", "pierhead.runner.adapters.keeper", "pierhead.runner.engine"),
    ("Adapters serve ports", "pierhead.router.adapters.clock", "pierhead.router.services.submit"),
    ("SQL stays", "pierhead.router.services.submit", "sqlalchemy"),
    ("SQL stays", "pierhead.server.blobs", "sqlite3"),
    ("The web framework", "pierhead.router.services.submit", "starlette"),
    ("Only what talks", "pierhead.router.services.submit", "httpx"),
    ("Cryptography", "pierhead.protocol.client.client", "cryptography"),
    ("Cryptography", "pierhead.router.cli.build", "cryptography"),
    ("Only commands", "pierhead.router.services.submit", "rich"),
    ("The helper processes", "pierhead.runner.keeper.keeper", "pierhead.protocol.plan"),
    ("The helper processes", "pierhead.runner.export.export", "zstandard"),
]
# A module that no layer has a place for, where layers have to name all there is.
STRAYS = [
    ("Protocol", "pierhead.protocol.utils"),
    ("Server", "pierhead.server.utils"),
    ("Router: composition", "pierhead.router.utils"),
    ("Router, the ports", "pierhead.router.ports.utils"),
    ("Router: rules", "pierhead.router.domain.utils"),
    ("Runner: composition", "pierhead.runner.utils"),
    ("Runner: rules", "pierhead.runner.domain.utils"),
]


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    roots = CONFIGURATION["session_options"]["root_packages"]
    return grimp.build_graph(*roots, include_external_packages=True, cache_dir=None)


def is_kept(name: str, graph: grimp.ImportGraph) -> bool:
    [options] = [CONTRACTS[full] for full in CONTRACTS if full.startswith(name)]
    kind = KINDS[options["type"]]
    contract = kind(options["name"], CONFIGURATION["session_options"], options)
    return contract.check(copy.deepcopy(graph), verbose=False).kept


@pytest.mark.parametrize(("name", "importer", "imported"), BREAKAGES)
def test_a_contract_notices_an_import_that_it_forbids(
    graph: grimp.ImportGraph, name: str, importer: str, imported: str
) -> None:
    broken = copy.deepcopy(graph)
    external = not imported.startswith("pierhead.")
    if imported not in broken.modules:
        broken.add_module(imported, is_squashed=external)
    broken.add_import(importer=importer, imported=imported)

    assert is_kept(name, graph)
    assert not is_kept(name, broken)


@pytest.mark.parametrize(("name", "stray"), STRAYS)
def test_a_module_needs_a_place_in_the_layers(
    graph: grimp.ImportGraph, name: str, stray: str
) -> None:
    broken = copy.deepcopy(graph)
    broken.add_module(stray)

    assert not is_kept(name, broken)


def test_every_contract_is_shown_to_break() -> None:
    shown = {full for full in CONTRACTS for name, *_ in BREAKAGES if full.startswith(name)}

    assert shown == set(CONTRACTS)
