"""What the final training records."""

import pytest

from nas.final.training import curve


def test_a_curve_has_at_most_so_many_points() -> None:
    losses = [float(step) for step in range(1, 251)]
    points = curve(losses, 100)
    assert len(points) == 84
    assert points[0] == (3, 2.0) and points[1] == (6, 5.0)
    assert points[-1] == (250, 250.0)
    assert sum(loss * min(3, 250 - 3 * number) for number, (_, loss) in enumerate(points)) == pytest.approx(sum(losses))
    assert curve(losses[:7]) == [(step, float(step)) for step in range(1, 8)]
    assert curve([]) == []
