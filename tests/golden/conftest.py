"""The option that makes golden runs anew."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-golden", action="store_true", help="write the golden runs instead of comparing with them")
