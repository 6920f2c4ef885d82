"""The documents agree with the code and with each other: generated pages, links, words."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pierhead.protocol.environment import OBEYED
from pierhead.protocol.problem import PROBLEM_TYPES
from tests.unit.house.tree import ROOT, files_like

GENERATORS = ["json_schema.py", "error_docs.py", "state_diagrams.py", "api_docs.py", "man_page.py"]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
PAGES = files_like(".md")


def anchors(page: Path) -> set[str]:
    """Return the anchors that a forge makes of the headings of a page."""
    titles = HEADING.findall(page.read_text())
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in LINK.findall(CODE.sub("", page.read_text())):
        target, _, anchor = link.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        there = (page.parent / target).resolve() if target else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("generator", GENERATORS)
def test_a_generated_page_is_what_its_generator_writes_now(generator: str) -> None:
    command = [sys.executable, str(ROOT / "tools" / generator), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_the_page_of_environment_variables_has_all_of_them() -> None:
    name = re.compile(r"\bPIERHEAD_[A-Z_]+\b")
    sources = files_like(".py", under="packages")
    read = {found for source in sources for found in name.findall(source.read_text())}
    page = (ROOT / "docs/reference/environment.md").read_text()

    assert set(re.findall(r"^\| `(PIERHEAD_[A-Z_]+)` \|", page, re.MULTILINE)) == read
    assert len(read) >= 8


def test_the_page_of_environment_variables_has_what_services_are_given() -> None:
    page = (ROOT / "docs/reference/environment.md").read_text()

    assert all(f"`{name.upper()}`" in page for name in OBEYED)


@pytest.mark.parametrize("slug", PROBLEM_TYPES)
def test_every_problem_has_its_heading(slug: str) -> None:
    assert slug in anchors(ROOT / "docs" / "errors.md")


def test_the_glossary_has_the_words_of_the_house_in_order() -> None:
    terms = re.findall(
        r"^\*{2,3}([^*]+)\*{2,3} ", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE
    )

    assert {"build", "attempt", "runner", "lease", "fence", "here", "project"} <= set(terms)
    assert terms == sorted(terms, key=str.lower)


def test_each_decision_is_listed_and_says_what_follows_from_it() -> None:
    folder = ROOT / "docs" / "adr"
    listed = LINK.findall((folder / "README.md").read_text())
    records = sorted(path.name for path in folder.glob("0*.md"))

    assert sorted(listed) == records
    for name in records:
        titles = HEADING.findall((folder / name).read_text())
        assert titles[1:] == ["Context", "Options", "Decision", "Consequences"]


def test_the_readme_names_every_make_target_that_it_needs_and_no_other() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)", (ROOT / "README.md").read_text()))

    assert {"demo", "test"} <= named <= targets
