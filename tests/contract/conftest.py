"""What the suites share with the tests of the real things."""

from tests.integration.backend.conftest import isolates as isolates
