"""A sampler from outside the package only needs an entry in the table `SAMPLERS`."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from nas.config.load import load_config
from nas.config.schema import ConfigError
from nas.samplers import SAMPLERS, Proposer
from nas.search import command as search
from nas.study import ledger
from nas.study.ledger import Observation
from search_spaces import Architecture
from tests.nas.tiny_study import TinyStudy, trials_of


class Smallest(Proposer):
    """Proposes the smallest of ten random members."""

    def propose(self, observations: list[Observation], rng: random.Random) -> Iterator[Architecture]:
        members = [self.space.sample(rng) for _ in range(10)]
        yield from sorted(members, key=lambda member: sum(ffn.inner(member.base) for ffn in member.ffns))


def test_a_configuration_asks_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="there is no sampler 'smallest'"):
        load_config("demo-ffn", {"stage1.sampler": "smallest"})
    monkeypatch.setitem(SAMPLERS, "smallest", Smallest)
    assert load_config("demo-ffn", {"stage1.sampler": "smallest"}).stage1.sampler == "smallest"
    with pytest.raises(ConfigError, match=r"stage1\.sampler is smallest and goals are score,params: two goals need"):
        load_config("demo-ffn", {"stage1.sampler": "smallest", "goals": "score,params"})


@pytest.mark.slow
@pytest.mark.usefixtures("ray_without_tokens")
def test_a_search_with_it(tiny_study: TinyStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SAMPLERS, "smallest", Smallest)
    monkeypatch.setenv("FFN_NAS_CACHE", str(tiny_study.cache))
    arguments = ["--stage", "1", "--preset", str(tiny_study.preset), "--study", "s", "--out", str(tmp_path)]
    options = ["--trials", "5", "--sampler", "smallest", "--workers", "1", "--device", "cpu"]
    assert search.main([*arguments, *options]) == 0
    trials = trials_of(tmp_path / "s")
    assert [trial.user_attrs[ledger.ORIGIN] for trial in trials].count("smallest") >= 2
