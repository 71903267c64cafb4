"""Optuna's own tests of what a storage must do, over ours.

Its tests of samplers do not apply: they ask for parameters of their own, and our samplers propose members of a space.
"""

from pathlib import Path

import pytest
from optuna.storages import BaseStorage
from optuna.testing.pytest_storages import StorageTestCase

from nas.study.storage import open_storage, sqlite_url

# Each test takes a fraction of a second, but there are sixty.
pytestmark = pytest.mark.slow


class TestStorage(StorageTestCase):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> BaseStorage:
        return open_storage(sqlite_url(tmp_path / "study.db"))
