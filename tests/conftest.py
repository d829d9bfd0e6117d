"""Settings of all tests, and options for their counts."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import wraps
from typing import Any

import pytest
from hypothesis import is_hypothesis_test, settings

# A busy machine is no fault of the code: no example is timed.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

EXAMPLES = "examples"  # property of a test's report: how many it ran to the end
ended = [0]  # examples of all properties


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--examples", type=int, help="examples of each property, where its own count is not larger"
    )
    parser.addoption("--interrupts", type=int, default=1, help="moments at which a search is interrupted")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    many = config.getoption("examples")
    for function in {item.obj for item in items if isinstance(item, pytest.Function)} if many else ():
        if is_hypothesis_test(function):
            # Hypothesis refuses a second `settings`, and keeps the first in this attribute.
            own = function._hypothesis_internal_use_settings
            most = max(own.max_examples, many)
            function._hypothesis_internal_use_settings = settings(own, max_examples=most)
            function.hypothesis.inner_test = counted(function.hypothesis.inner_test)


def counted(example: Callable[..., Any]) -> Callable[..., Any]:
    """The same, and adds to `ended`; what an assumption stops is no example."""

    @wraps(example)
    def one(*args: Any, **named: Any) -> Any:
        result = example(*args, **named)
        ended[0] += 1
        return result

    return one


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Examples go into the report of each test, and with it into a file of reports."""
    before = ended[0]
    try:
        return (yield)
    finally:
        if ended[0] > before:
            item.user_properties.append((EXAMPLES, ended[0] - before))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "moment" in metafunc.fixturenames:
        metafunc.parametrize("moment", range(metafunc.config.getoption("interrupts")))
