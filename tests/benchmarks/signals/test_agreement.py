from accelerate.state import AcceleratorState

from benchmarks.signals.agreement import SETTINGS, rows_of, scores
from benchmarks.signals.measurements import draw
from nas.preparation.prepare import prepare
from nas.stages import plan
from tests.accelerate_state import reset_accelerate
from tests.nas.tiny_study import TinyStudy


def test_every_setting_evaluates(tiny_study: TinyStudy) -> None:
    workspace = prepare(tiny_study.config, "cpu")
    architectures = [one.to_json() for one in draw(plan(tiny_study.config, workspace, "1", None, ()).space, 4)]
    results = {}
    for setting in SETTINGS:
        reset_accelerate()  # each has a process of its own
        results[setting] = scores(setting, workspace, architectures)
        precision = AcceleratorState().mixed_precision
        assert precision == "no" if setting == "float32" else precision in ("no", "bf16")
    rows = rows_of(results)
    assert [row[0] for row in rows] == list(SETTINGS)
    assert rows[0][2:6] == ("+0.0000", "0.0000", "0.0000", "+1.00")
