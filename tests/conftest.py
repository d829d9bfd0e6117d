"""Settings of all tests, and options for their counts."""

from __future__ import annotations

import pytest
from hypothesis import is_hypothesis_test, settings

# A busy machine is no fault of the code: no example is timed.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--examples", type=int, help="examples of each property, instead of its own count")
    parser.addoption("--interrupts", type=int, default=1, help="moments at which a search is interrupted")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    many = config.getoption("examples")
    for function in {item.obj for item in items if isinstance(item, pytest.Function)} if many else ():
        if is_hypothesis_test(function):
            # Hypothesis refuses a second `settings`, and keeps the first in this attribute.
            own = function._hypothesis_internal_use_settings
            function._hypothesis_internal_use_settings = settings(own, max_examples=many)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "moment" in metafunc.fixturenames:
        metafunc.parametrize("moment", range(metafunc.config.getoption("interrupts")))
