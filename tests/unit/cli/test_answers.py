"""Every command that has --json says in the schema what it prints."""

from collections.abc import Iterator

from pierhead.protocol.answers import DOCUMENTS, STREAMS
from pierhead.protocol.cli.commands import COMMANDS
from pierhead.protocol.cli.tree import Node, tree_of

ELSEWHERE = {"runner show"}  # two words about this machine alone


def every(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from every(child)


def test_the_schema_names_every_command_with_json_and_no_other() -> None:
    nodes = [node for command in COMMANDS for node in every(tree_of(command))]
    able = {node.name for node in nodes if any("--json" in flag.names for flag in node.flags)}
    described = {name.partition(" --")[0] for name in {**DOCUMENTS, **STREAMS}}
    assert able - ELSEWHERE == described
