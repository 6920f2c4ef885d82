"""Run inside the build: an image of a service that fails them is never made."""

import unittest

from app.service import answer


class Answers(unittest.TestCase):
    """What the service answers."""

    def test_it_is_well(self) -> None:
        """The health check sees 200."""
        self.assertEqual(answer("/healthz"), (200, {"state": "well"}))

    def test_an_unknown_path_is_not_found(self) -> None:
        """Nothing is served that is not named."""
        self.assertEqual(answer("/else")[0], 404)
