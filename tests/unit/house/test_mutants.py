"""Each deliberate mistake can still be made: the text that it changes is there, once."""

import pytest

from tools.mutants import FAMILIES, MUTANTS, PLACES, PROMISE, RIGHTS, Mutant

ALL = {mutant.name: mutant for mutant in (*FAMILIES, *MUTANTS, *PROMISE, *RIGHTS)}


@pytest.mark.parametrize("mutant", ALL.values(), ids=ALL.keys())
def test_the_text_that_a_mutant_changes_is_there_once(mutant: Mutant) -> None:
    source = (PLACES[mutant.package] / mutant.file).read_text()

    assert source.count(mutant.old) == 1
    assert mutant.new not in {mutant.old, source}
