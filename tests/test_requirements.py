"""Missing dependencies skip a test on a developer's machine and fail it in CI."""

import pytest

from tests import requirements


@pytest.mark.parametrize(("value", "outcome"), [("", "skipped"), ("0", "skipped"), ("1", "failed")])
def test_a_missing_dependency(value: str, outcome: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(requirements.REQUIRE_ALL, value)
    exception = {"skipped": pytest.skip.Exception, "failed": pytest.fail.Exception}[outcome]
    with pytest.raises(exception, match="no_such_module: install the extra demo"):
        requirements.module("no_such_module", "demo")
    with pytest.raises(exception, match="no-such-program or no-other"):
        requirements.program("no-such-program", "no-other")


def test_an_installed_dependency() -> None:
    requirements.module("pytest", "test")
    assert requirements.program("no-such-program", "python3", "python").endswith(("python3", "python"))
