"""For tests that load tables as from the hub."""

from pathlib import Path

import pytest


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `datasets` keeps goes into the test's own folder."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "kept")
