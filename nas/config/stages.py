"""The tables of the stages of a search, part of the schema of a study's configuration."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from nas.config.values import Distinct, PositiveFraction, SamplerName, Table, UnitFloat

# Those keys of a stage that are settings of its sampler; each sampler has its own (`nas.samplers.Proposer.settings`).
SAMPLER_SETTINGS = ("exploration", "leaf_size", "first_random", "refit_every")


class StageTable(Table):
    """What a stage may spend, and how it searches.

    Attributes:
        evaluation: how candidates are scored: "trained": after their training; "untrained": with their inherited
            weights, so that only the finalists are trained; "one_shot", only in stage 3: as slices of a one-shot
            supernet.
        score: what untrained candidates are compared by: "metric": the task's; "fidelity": how well their outputs
            correlate with the teacher's, which has less noise. Trained ones are compared by the task's metric.
        rows: untrained candidates are scored on this many rows of the search split; None: on all.
        search_fraction: trained candidates are scored on the first rows of the search split, as many as this fraction
            of all training rows; None: on all.
        trials: how many candidates are evaluated, baselines included.
        sampler: a key of `nas.samplers.SAMPLERS`.
        exploration: the constant of the upper confidence bounds, for `lanas` in standard deviations of the scores
            (default 1), for `lanas-published` in units of the score (default 0.1).
        leaf_size: `lanas` and `lanas-published` do not split a region if one part would have fewer trials (defaults 5
            and 1).
        first_random: proposals of `lanas` and `lanas-published` are random until this many trials have a score
            (defaults 5, or 2 with a zero-cost proxy, and 10).
        refit_every: `lanas` and `lanas-published` learn their trees again after this many trials (defaults: at 1.5
            times as many, and 20).
        confirm: how many of the best candidates are trained again, with fresh seeds, before the winner is chosen; the
            best baseline and global importance are trained again in any case.
        confirm_seeds: how many fresh seeds each of them is trained with.
        mutation_rate: replaces that of the space.
        rungs: the fractions of a candidate's training steps after which it may be pruned.
        stop: the fraction of candidates that are pruned at each rung, namely those with the lowest scores so far.
    """

    evaluation: Literal["trained", "untrained", "one_shot"] = "trained"
    score: Literal["metric", "fidelity"] = "metric"
    rows: Annotated[int, Field(ge=1)] | None = None
    search_fraction: PositiveFraction | None = None
    trials: Annotated[int, Field(ge=1, le=1_000_000)]
    sampler: SamplerName = "lanas"
    exploration: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    leaf_size: Annotated[int, Field(ge=1)] | None = None
    first_random: Annotated[int, Field(ge=1)] | None = None
    refit_every: Annotated[int, Field(ge=1)] | None = None
    confirm: Annotated[int, Field(ge=1)] = 3
    confirm_seeds: Annotated[int, Field(ge=0)] = 2
    mutation_rate: UnitFloat | None = None
    rungs: Distinct[PositiveFraction] = ()
    stop: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0

    def sampler_settings(self) -> dict[str, float]:
        """The settings of the sampler that are given, as keyword arguments; the sampler has defaults for the others."""
        return {name: value for name in SAMPLER_SETTINGS if (value := getattr(self, name)) is not None}

    @model_validator(mode="after")
    def _fraction_is_of_trained(self) -> "StageTable":
        if self.search_fraction is not None and self.evaluation != "trained":
            other = "rows" if self.evaluation == "untrained" else "one_shot.rows"
            raise ValueError(f"search_fraction is for trained candidates; for {self.evaluation} ones set {other}")
        return self

    @model_validator(mode="after")
    def _pruned_ones_are_trained(self) -> "StageTable":
        if self.stop > 0 and self.evaluation != "trained":
            raise ValueError(f"{self.evaluation} candidates cannot be pruned; leave out stop")
        if self.stop > 0 and not any(rung < 1 for rung in self.rungs):
            raise ValueError(
                'stop: candidates are pruned at rungs below 1: set rungs, such as ["1/2"], or leave out stop'
            )
        return self

    @model_validator(mode="after")
    def _sampler_has_settings(self) -> "StageTable":
        from nas.samplers import SAMPLERS

        for name in self.sampler_settings():
            if name not in SAMPLERS[self.sampler].settings:
                having = " and ".join(known for known, kind in SAMPLERS.items() if name in kind.settings)
                raise ValueError(f"{name} is a setting of {having}, which {self.sampler} does not have: leave it out")
        return self


class Stage3Table(StageTable):
    """The same for stage 3, with another default.

    Attributes:
        scored_on: the score of a candidate is its mean over all tasks, or that on the first task alone.
    """

    evaluation: Literal["trained", "untrained", "one_shot"] = "one_shot"
    scored_on: Literal["mean", "first"] = "mean"
