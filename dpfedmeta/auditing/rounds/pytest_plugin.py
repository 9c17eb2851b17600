"""Fixture `assert_private` for everybody's tests: it fails where rounds break a promise about a client.

A conftest.py loads it by `pytest_plugins`. As an entry point it would have pytest rewrite every module of the package.
"""

from collections.abc import Callable, Mapping
from typing import Any

import pytest


@pytest.fixture
def assert_private() -> Callable[..., Any]:
    """A function that fails the test where somebody's rounds break a promise, and returns the verdict otherwise.

    Example:
        ```python
        def test_my_rounds(assert_private):
            assert_private(round_of_mine, epsilon=8, delta=1e-5, like={"w": np.zeros((4, 2))})
        ```
    """
    return _assert_private


def _assert_private(
    function: Callable[..., Any],
    /,
    *,
    epsilon: float,
    delta: float,
    like: Mapping[str, Any] | None = None,
    seed: int = 0,
    **given: Any,
) -> Any:
    """Fail where an audit refutes the promise.

    Args:
        function: One round, as `dpfedmeta.audit_rounds` takes it.
        epsilon: (client, public), of all rounds together.
        delta: Likewise.
        like: Names and shapes of an update; None: `LIKE` of the module that it stands in.
        seed: Of the audit: the same one in each run of the tests.
        given: Further arguments of `dpfedmeta.audit_rounds`, such as `rounds=100`.

    Raises:
        InputError: No `like`, or an argument is out of range.
    """
    import sys

    import dpfedmeta as dp
    from dpfedmeta.core.errors import InputError

    module = getattr(function, "__module__", "")
    names = getattr(sys.modules.get(module), "LIKE", None) if like is None else like
    if names is None:
        raise InputError(f"assert_private: give like=, names and shapes of an update, or set LIKE in {module}")
    verdict = dp.audit_rounds(
        function, promise=dp.Promise(epsilon=epsilon, delta=delta), like=names, seed=seed, **{"runs": 1000, **given}
    )
    if verdict.refuted:
        pytest.fail(str(verdict), pytrace=False)
    return verdict
