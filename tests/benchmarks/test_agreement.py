from collections.abc import Iterator

import pytest
from accelerate.state import AcceleratorState

from benchmarks.agreement import SETTINGS, report, scores
from benchmarks.evidence import draw
from nas.prepare import prepare
from nas.stages import plan
from tests.nas import house as houses
from tests.nas.house import House


@pytest.fixture
def house(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    """A study of seconds; the library's process-wide state is reset around it."""
    built = houses.shared(tmp_path_factory.getbasetemp())
    monkeypatch.setenv("FFN_NAS_CACHE", str(built.cache))
    AcceleratorState._reset_state(reset_partial_state=True)
    yield built
    AcceleratorState._reset_state(reset_partial_state=True)


def test_every_setting_evaluates(house: House) -> None:
    workspace = prepare(house.config, "cpu")
    architectures = [one.to_json() for one in draw(plan(house.config, workspace, "1", None, ()).space, 4)]
    found = {}
    for setting in SETTINGS:
        AcceleratorState._reset_state(reset_partial_state=True)  # each has a process of its own
        found[setting] = scores(setting, workspace, architectures)
        precision = AcceleratorState().mixed_precision
        assert precision == "no" if setting == "float32" else precision in ("no", "bf16")
    lines = report(found).splitlines()
    assert [line.split()[1] for line in lines[-4:]] == list(SETTINGS)
    assert "| usual |" in lines[-4] and "+0.0000 | 0.0000 | 0.0000 | +1.00 |" in lines[-4]
