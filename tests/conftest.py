"""Settings for all tests (the hub is offline, Ctrl-C works in subprocesses) and fixtures that several packages use."""

import contextlib
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

# huggingface_hub reads this when it is first imported.
os.environ["HF_HUB_OFFLINE"] = "1"
# Torch reads this when it is first imported. The models of tests are so small that a second thread only costs time,
# above all while other processes are running.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Subprocesses run the code of this checkout, wherever they are started.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH")])
)

import pytest
from hypothesis import settings

from tests.accelerate_state import reset_accelerate
from tests.commands import Refused, refusal

pytest_plugins = ["tests.slow_thirds", "tests.trust_counts", "pytester"]

if TYPE_CHECKING:
    from accelerate import Accelerator

    from tests.nas.tiny_study import TinyStudy

# A busy machine makes a test slow, not wrong.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# A background job of a shell ignores SIGINT, and its subprocesses, which tests interrupt, inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def working_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests run in an empty folder and leave it empty, so that none depends on what lies where they are started."""
    folder = tmp_path_factory.mktemp("working-directory")
    with contextlib.chdir(folder):
        yield
    assert list(folder.iterdir()) == [], "tests have left these in the working directory"


@pytest.fixture(autouse=True)
def fresh_accelerate_state() -> Iterator[None]:
    """Reset accelerate's state before a test, since fixtures of its module may have made an `Accelerator`, and after
    it, for the fixtures of the next module.
    """
    reset_accelerate()
    yield
    reset_accelerate()


@pytest.fixture
def accelerator() -> "Accelerator":
    """An accelerator in float32 on the CPU."""
    from accelerate import Accelerator

    return Accelerator(cpu=True, mixed_precision="no")


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """The one line with which a command refuses its arguments."""
    return partial(refusal, capsys)


@pytest.fixture
def ray_without_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's token authentication is off. Ray fixes the mode at the first `ray.init` of a process; workers of a later
    session with another mode cannot connect.
    """
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets` prepares its Arrow files in the test's own folder."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "kept")


@pytest.fixture(scope="session")
def shared_study(tmp_path_factory: pytest.TempPathFactory) -> "TinyStudy":
    """The tiny study of a test run, which all tests share."""
    from tests.nas.tiny_study import shared

    return shared(tmp_path_factory)


@pytest.fixture
def tiny_study(shared_study: "TinyStudy", monkeypatch: pytest.MonkeyPatch) -> "TinyStudy":
    """The tiny study, whose cache folder this process uses, too."""
    monkeypatch.setenv("FFN_NAS_CACHE", str(shared_study.cache))
    return shared_study


@pytest.fixture(scope="module")
def study_cache(shared_study: "TinyStudy") -> Iterator[None]:
    """The tests and fixtures of a module use the cache folder of the tiny study."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FFN_NAS_CACHE", str(shared_study.cache))
        yield


@pytest.fixture(scope="session")
def searched(shared_study: "TinyStudy") -> Path:
    """The folder of a finished search of stage 1 with the tiny study's preset."""
    from tests.nas.tiny_study import finished

    return finished(shared_study)
