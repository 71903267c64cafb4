from accelerate.state import AcceleratorState

from benchmarks.signals.agreement import SETTINGS, report, scores
from benchmarks.signals.evidence import draw
from nas.preparation.prepare import prepare
from nas.stages import plan
from tests.nas.house import House


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
