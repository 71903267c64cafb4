"""Presets, configuration files, overrides, and which of them are refused."""

import math
import re
from fractions import Fraction
from pathlib import Path

import pytest

from distill.objectives import OBJECTIVES
from nas.config.load import load_config, parse_config, presets
from nas.config.schema import ConfigError, StudyConfig
from nas.config.stages import SAMPLER_SETTINGS
from nas.config.values import count

DEMO = load_config("demo")


@pytest.mark.parametrize("name", presets())
def test_the_terms_of_the_presets_losses(name: str) -> None:
    """As docs/configuration.md says: those of EfficientBERT at 1, but two of the small presets at 0."""
    objective = load_config(name).objective
    settings = OBJECTIVES[objective.name].defaults | objective.settings()
    if "moe" in name:
        assert objective.name == ("minimoe" if name == "minimoe" else "moebert")
        return
    if "embeddings" in name or "reranking" in name or name == "microbert":
        assert objective.name == name.removeprefix("compress-")
        return
    left_out = 1.0 if name.startswith("efficientbert") else 0.0
    weights = {term: settings[term] for term in ("attention", "hidden", "embedding", "prediction")}
    assert weights == {"attention": left_out, "hidden": 1.0, "embedding": left_out, "prediction": 1.0}


@pytest.mark.parametrize("name", presets())
def test_presets_come_back_from_their_toml(name: str) -> None:
    config = load_config(name)
    assert isinstance(config, StudyConfig)
    assert parse_config(config.to_toml(), "again") == config
    assert hash(parse_config(config.to_toml(), "again")) == hash(config)
    # Settings of samplers that are not given leave no trace.
    given = {setting for stage in "123" for setting in config.stage(stage).sampler_settings()}
    assert {setting for setting in SAMPLER_SETTINGS if f"\n{setting} =" in config.to_toml()} == given


def test_every_kind_of_value_comes_back_from_toml(tmp_path: Path) -> None:
    base = {"depth": 6, "width": 540, "heads": 12, "inner": 540, "embedding": 128}
    changes = {"base": base, "space.uniform": None, "space.max_params": "15.4M", "space.min_params": 15_000_000}
    config = load_config(
        "demo", changes | {"dropout": 0.1, "objective.temperature": 1 / 3, "space.expansions": ["3/32", 1]}
    )
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml())
    assert load_config(str(path)) == config
    assert config.space.max_params == 15_400_000
    assert config.space.expansions == (Fraction(3, 32), Fraction(1))
    assert config.base.build(30522).embedding == 128  # type: ignore[union-attr]


def test_recipes_of_trainings() -> None:
    assert load_config("moe").final.build(6400).weight_decay == 0.0
    for key, value in (("weight_decay", 0.1), ("max_grad_norm", 5.0), ("gradient_accumulation_steps", 3)):
        config = load_config("demo", {f"final.{key}": value})
        assert getattr(config.final.build(100), key) == value
        assert config.final.model_dump() == DEMO.final.model_dump() | {key: value}
    changes = {"final.epochs": 2, "final.batch_size": 10, "final.gradient_accumulation_steps": 3}
    recipe = load_config("demo", changes | {"final.early_stopping_patience": 4}).final.build(100)
    assert (recipe.steps, recipe.batches, recipe.eval_steps, recipe.early_stopping_patience) == (7, 21, 4, 4)
    plain = load_config("demo", changes).final.build(100)
    assert (plain.eval_steps, plain.early_stopping_patience) == (None, None)


OF_MINE = '[rows.mine]\ntrain = "a"\ndev = "b"\n'
ROWS = '[rows.mine]\ntrain = "{train}"\ndev = "{dev}"\n'


def test_rows_are_found_beside_the_preset_that_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner, elsewhere = tmp_path / "inner", tmp_path / "elsewhere"
    inner.mkdir(), elsewhere.mkdir()
    given = ROWS.format(train="train.tsv", dev=tmp_path / "dev.tsv")
    (inner / "a.toml").write_text(f'extends = "demo"\n{given}')
    (tmp_path / "b.toml").write_text('extends = "inner/a.toml"\n[rows.yours]\ntrain = "t.tsv"\ndev = "../d.tsv"\n')
    (elsewhere / "train.tsv").touch()  # what the working directory has is no matter
    monkeypatch.chdir(elsewhere)
    for name in ("../b.toml", str(tmp_path / "b.toml")):
        config = load_config(name)
        assert (config.rows["mine"].train, config.rows["mine"].dev) == (f"{inner}/train.tsv", f"{tmp_path}/dev.tsv")
        assert (config.rows["yours"].train, config.rows["yours"].dev) == (
            f"{tmp_path}/t.tsv",
            f"{tmp_path.parent}/d.tsv",
        )
    # A study's own copy finds them from everywhere.
    (elsewhere / "config.toml").write_text(config.to_toml())
    monkeypatch.chdir("/")
    assert load_config(str(elsewhere / "config.toml")) == config


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("rows = 3", "rows: "),
        ("rows.mine = 3", "rows.mine: "),
        ("rows.mine.train = 3", "rows.mine.train: "),
        (OF_MINE + "multi_label = true\nthreshold = 1.5", "rows.mine.threshold: .* less than 1"),
        (OF_MINE + "threshold = 0.3", "rows.mine: threshold is for rows with any number of classes: add multi_label"),
        (OF_MINE + "multi_label = true\nregression = true", "rows.mine: regression and multi_label cannot be combined"),
        (OF_MINE + 'regression = true\nclass_weights = "balanced"', "rows.mine: class_weights: .* have no classes"),
        (OF_MINE + 'embeddings = true\nmetric = "f1"', "rows.mine: metric: rows with embeddings have no labels"),
        (OF_MINE + "reranking = true", "rows.mine: reranking scores pairs .*: name the column of passages by pair"),
        (
            OF_MINE + "class_weights = {a = 0}",
            "rows.mine.class_weights.*: {'a': 0} is neither \"balanced\" nor a table of weights",
        ),
        (OF_MINE + 'labels = ["a", "b", "a"]', "rows.mine.labels: 'a' is given twice$"),
        (OF_MINE + 'class_weights = "even"', "rows.mine.class_weights.*: 'even' is neither \"balanced\" nor"),
    ],
)
def test_rows_that_are_no_tables(tmp_path: Path, rows: str, message: str) -> None:
    (tmp_path / "a.toml").write_text(f'extends = "demo"\n{rows}\n')
    with pytest.raises(ConfigError, match=message):
        load_config(str(tmp_path / "a.toml"))


def test_rows_below_the_home_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    (tmp_path / "a.toml").write_text(f'extends = "demo"\n{ROWS.format(train="~/train.tsv", dev="dev~.tsv")}')
    rows = load_config(str(tmp_path / "a.toml")).rows["mine"]
    assert (rows.train, rows.dev) == ("/home/me/train.tsv", f"{tmp_path}/dev~.tsv")


def test_a_file_extends_a_preset_or_the_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        'extends = "demo"\nmax_length = 48\n[candidate]\nepochs = 1.5\nfraction = 0.5\n[objective]\nhidden = 0.5\n'
    )
    (tmp_path / "b.toml").write_text(
        'extends = "a.toml"\nbase = {depth = 1, width = 8, heads = 2, inner = 8}\n[stage1]\ntrials = 3\n'
    )
    first, second = (load_config(str(tmp_path / name)) for name in ("a.toml", "b.toml"))
    assert first.max_length == second.max_length == 48
    assert (first.candidate.steps, first.candidate.epochs, first.candidate.batch_size) == (None, 1.5, 32)
    assert first.objective.settings() == DEMO.objective.settings() | {"hidden": 0.5}
    assert (second.stage1.trials, second.stage1.confirm) == (3, DEMO.stage1.confirm)
    assert first.base == "teacher" and not isinstance(second.base, str) and second.base.depth == 1
    # Another objective keeps no settings; an override of steps takes the place of epochs.
    (tmp_path / "c.toml").write_text('extends = "a.toml"\n[objective]\nname = "kd"\n')
    third = load_config(str(tmp_path / "c.toml"), {"candidate.steps": 7})
    assert third.objective.settings() == {}
    assert (third.candidate.steps, third.candidate.epochs) == (7, None)
    # Overrides change their place alone.
    changed = load_config("demo", {"seed": 7, "stage1.trials": 5, "stage1.sampler": "tpe"})
    assert (changed.seed, changed.stage1.trials, changed.stage1.sampler) == (7, 5, "tpe")
    assert changed.model_copy(update={"seed": DEMO.seed, "stage1": DEMO.stage1}) == DEMO == load_config("demo")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a": "extends = 3"}, "a.toml: extends: must be the name of a preset or a .toml file, not 3"),
        ({"a": 'extends = "demon"'}, "a.toml: extends: unknown preset '.*demon'"),
        ({"a": 'extends = "b.toml"'}, "a.toml: extends: .*b.toml: No such file"),
        ({"a": 'extends = "b.toml"', "b": 'extends = "a.toml"'}, "a.toml -> .*b.toml -> .*a.toml is a cycle"),
        ({"a": 'extends = "b.toml"', "b": "x = "}, "a.toml: extends: .*b.toml: not TOML"),
        ({"a": 'extends = "demo"\n[stage1]\ntrails = 3'}, "stage1.trails: unknown key; did you mean 'trials'"),
    ],
)
def test_what_cannot_be_extended(tmp_path: Path, files: dict[str, str], message: str) -> None:
    for name, text in files.items():
        (tmp_path / f"{name}.toml").write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(str(tmp_path / "a.toml"))
    assert "\n" not in str(caught.value)


def test_steps_of_epochs() -> None:
    table = load_config("demo", {"candidate.epochs": 3, "candidate.batch_size": 256}).candidate
    # EfficientBERT's candidates on a tenth of MNLI.
    assert table.build(39_270).steps == 461
    assert table.build(1).steps == 1
    assert table.model_copy(update={"epochs": 0.5}).build(1024).steps == 2
    both = load_config("demo", {"candidate": {"steps": 3, "epochs": 2, "learning_rate": 1e-4}}).candidate
    assert (both.build(32).steps, both.build(33).steps) == (2, 3), "the shorter of the two"
    with pytest.raises(ConfigError, match="candidate: give steps or epochs"):
        load_config("demo", {"candidate": {"learning_rate": 1e-4, "steps": None}})


@pytest.mark.parametrize(
    ("text", "number"),
    [("15.4M", 15_400_000), ("900k", 900_000), ("1G", 10**9), (" 12 ", 12), ("0.5K", 500), (1.5e7, 15_000_000)],
)
def test_count(text: object, number: int) -> None:
    assert count(text) == number


@pytest.mark.parametrize(
    "value",
    ["abc", "", "M", "0", "0M", "-3", "1.5", "1e3", "1e999999999", "nan", "inf", "15MM", "1/2", float("nan"), True],
)
def test_count_refuses(value: object) -> None:
    with pytest.raises(ValueError, match="number"):
        count(value)


# Keys and values that they cannot have.
REFUSED: dict[str, list[object]] = {
    "space.expansions": [[]],
    "space.stacks": [[], "1"],
    "space.slack": [float("nan"), -0.1],
    "space.mutation_rate": [1.5],
    "dropout": [float("nan"), 2],
    "seed": [-1, "one", 2**31],
    "max_length": [513],
    "teacher": [3],
    "candidate.learning_rate": [0, float("inf"), float("nan")],
    "candidate.batch_size": [0],
    "candidate.steps": [-1],
    "candidate.warmup_ratio": [float("nan")],
    "candidate.epochs": [0],
    "candidate.fraction": [0, 1.5],
    "text_teacher": ["none"],
    "final.start": ["teacher"],
    "warmup.source": ["hub"],
    "space.mismatch": ["pad"],
    "final.early_stopping_patience": [0],
    "candidate.weight_decay": [-1],
    "candidate.max_grad_norm": [0],
    "candidate.gradient_accumulation_steps": [0],
    "tasks": [[]],
    "stage1.stop": [1.0],
    "stage1.trials": [0, 2.5],
    "stage1.trails": [3],
    "stage1.exploration": [float("inf")],
    "stage1.leaf_size": [0],
    "stage2.first_random": [0],
    "stage3.refit_every": [2.5],
    "stage1": [3],
    "warmup.graphs": ["relu"],
    "supernet.inheritance": ["solved"],
    "supernet.calibration_rows": [9],
    "deployment.runtime": ["tflite", 3],
    "deployment.threads": [0, "all", 1.5],
    "deployment.batch": [0],
    "deployment.tokens": [0],
}


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        *((place, value, f"{place}: ") for place, values in REFUSED.items() for value in values),
        *(("space.heads", value, "space.heads") for value in ([], [1, 1], [-1], [1.5], ["2"], 3)),
        ("space.expansions", ["0"], "space.expansions.0: must be above 0 and at most 1, not 0"),
        ("space.expansions", ["1/4", "5/4"], "space.expansions.1: must be above 0 and at most 1, not 5/4"),
        ("space.expansions", ["1/2", "1", "0.5"], "space.expansions: 1/2 is given twice"),
        ("space.stacks", [1, 2, 1], "space.stacks: 1 is given twice"),
        ("space.experts", [{"count": 2}, {"count": 2}], "space.experts: "),
        ("stage1.rungs", ["1/2", "1/2"], "stage1.rungs: 1/2 is given twice"),
        ("space.expansions", ["1/0"], "space.expansions.0: '1/0' divides by zero"),
        ("space.expansions", ["-1/4"], "must be a fraction such as"),
        ("space.expansions", ["1e-999999999"], "must be a fraction such as"),
        ("space.expansions", [True], 'must be a fraction such as "1/8", not True'),
        ("space.expansions", ["1/4", 0.25], "space.expansions: 1/4 is given twice"),
        ("space.experts", [{"count": 1}, {"count": 1}], "space.experts: dense is given twice"),
        ("one_shot.widths", ["1", 1], "one_shot.widths: 1 is given twice"),
        ("space.stacks", [1, 1.0], "space.stacks: 1 is given twice"),
        *(
            (place, value, f"{place}: must be a number, not true")
            for place, value in (
                *((place, True) for place in ("seed", "dropout", "stage1.trials", "candidate.steps", "trial_timeout")),
                *((f"space.{choices}", [2, True]) for choices in ("stacks", "heads", "ranks")),
            )
        ),
        ("space.uniform", "half", "space.uniform: must be a fraction such as \"1/8\", not 'half'"),
        ("space.stacks", [1, -1], "space.stacks.1: "),
        (
            "space.stacks",
            [0],
            "space.stacks: at least one must be above 0, a layer without an FFN, as a supernet has blocks",
        ),
        ("space.max_params", "much", "space.max_params: 'much' is not a number"),
        ("base", 3, "base"),
        ("teacher_cache", "much", "teacher_cache: 'much' is not a number"),
        ("candidate.momentum", 0.9, "candidate.momentum: unknown key"),
        ("candidate.early_stopping_patience", 2, "candidate.early_stopping_patience: unknown key"),
        ("candidate.learning_rat", 0.9, "candidate.learning_rat: unknown key; did you mean 'learning_rate'?"),
        ("tsks", ["library"], "tsks: unknown key; did you mean 'tasks'?"),
        ("tasks", ["a", "a"], "tasks: a task is named twice"),
        ("goals", "score,score", "goals: 'score,score' is not one of "),
        ("goals", 40, "goals: '40' is not one of "),
        (
            "objective.hidden",
            float("inf"),
            "objective: hidden must be true or false, a finite number or a text, not inf",
        ),
        (
            "goals",
            "score,macs",
            "stage1.sampler is milp and goals are score,macs: two goals need one of random, tpe, nsga2",
        ),
        ("stage2.sampler", "nsga2", "stage2.sampler is nsga2 and goals are score: nsga2 is for two goals"),
        ("stage1.rungs", ["3/2"], "stage1.rungs.0: must be above 0 and at most 1, not 3/2"),
        ("space.max_macs", "lots", "space.max_macs: 'lots' is not a number"),
        ("space.max_size", "10", "space.max_size: a size is a number above 0 with KB, MB or GB"),
        ("space.max_size", "10MiB", "space.max_size: a size is a number above 0 with KB, MB or GB"),
        ("space.max_latency", "12", "space.max_latency: a latency is "),
        (
            "stage1.sampler",
            "genetic",
            "stage1.sampler: there is no sampler 'genetic' (samplers: lanas, lanas-published, ",
        ),
        ("space.max_latency", 0.3, "space.max_latency: a latency is a time above 0 such as '12ms' or "),
        ("stage1.exploration", -0.1, "stage1.exploration: Input should be greater than or equal to 0, not -0.1"),
        ("stage1.trials", "many", "stage1.trials: Input should be a valid integer, not 'many'"),
        ("tasks", "sst2", "tasks: Input should be a valid list, not 'sst2'"),
        ("deployment", 3, "deployment: Input should be a table, not 3"),
    ],
)
def test_values_that_cannot_be(place: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("demo", {place: value})
    assert str(caught.value).startswith("demo: ") and ": : " not in str(caught.value)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_arguments_of_other_types(tmp_path: Path) -> None:
    for name, overrides, message in (
        (None, None, "^name: must be the name of a preset or a .toml file, not None"),
        ("demo", [1], r"^overrides: must be values by dotted path, .* not \[1\]"),
        ("demo", {1: 2}, r"^overrides: must be values by dotted path, .* not \{1: 2\}"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_config(name, overrides)  # type: ignore[arg-type]
    (tmp_path / "own.toml").write_text('extends = "demo"')
    assert load_config(tmp_path / "own.toml") == load_config("demo")


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("stage1.rungs", [], "stage1: stop: candidates are pruned at rungs below 1: set rungs"),
        ("stage2.rungs", ["1"], "stage2: stop: candidates are pruned at rungs below 1: set rungs"),
        ("stage3.stop", 0.3, "stage3: one_shot candidates cannot be pruned; leave out stop"),
    ],
)
def test_candidates_are_pruned_only_at_rungs_of_their_training(place: str, value: object, message: str) -> None:
    """The preset prunes candidates of stages 1 and 2."""
    with pytest.raises(ConfigError, match=f"^demo-moe: {message}"):
        load_config("demo-moe", {place: value})


def test_a_budget_is_needed() -> None:
    with pytest.raises(ConfigError, match="demo-ffn: space: limit the parameters: set max_params, or uniform"):
        load_config("demo-ffn", {"space.uniform": None})


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ({"hidden": "much"}, "objective.hidden: must be a number, not 'much'"),
        ({"hidden": True}, "objective.hidden: must be a number, not True"),
        ({"paper_compatible": 1}, "objective.paper_compatible: must be true or false, not 1"),
        (
            {"hiden": 1},
            "objective: efficientbert has no setting 'hiden'; did you mean 'hidden'?; its settings are attention",
        ),
        ({"name": "moebret"}, "objective.name: there is no 'moebret'; did you mean 'moebert'? (objectives: "),
        ({"name": "codir", "rows": 3}, "objective: codir has no setting 'rows'"),
    ],
)
def test_settings_that_an_objective_has_not(objective: dict[str, object], message: str) -> None:
    table = load_config("demo", {"objective": objective}).objective
    with pytest.raises(ConfigError) as caught:
        table.check()
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("setting", SAMPLER_SETTINGS)
def test_settings_that_a_sampler_has_not(setting: str) -> None:
    given = {"stage2": {"sampler": "evolution", setting: 3}}
    message = f"demo: stage2: {setting} is a setting of lanas and lanas-published, which evolution does not have: leave"
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config("demo", given)


def test_another_sampler_replaces_the_settings_of_the_sampler(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('extends = "demo-ffn"\n[stage1]\nexploration = 0.5\n[stage2]\nleaf_size = 3\n')
    path = str(tmp_path / "a.toml")
    assert load_config(path).stage1.sampler_settings() == {"exploration": 0.5}
    assert load_config(path, {"stage1.sampler": "lanas"}).stage1.exploration == 0.5
    config = load_config(path, {"stage1.sampler": "evolution"})
    assert config.stage1.sampler_settings() == {}
    assert config.stage2.sampler_settings() == {"leaf_size": 3}
    both = [("stage1.sampler", "lanas-published"), ("stage1.leaf_size", 4)]
    for given in (both, both[::-1]):
        assert load_config(path, dict(given)).stage1.sampler_settings() == {"leaf_size": 4}
    (tmp_path / "b.toml").write_text('extends = "a.toml"\n[stage1]\nsampler = "lanas-published"\nfirst_random = 7\n')
    assert load_config(str(tmp_path / "b.toml")).stage1.sampler_settings() == {"first_random": 7}


def test_a_candidate_is_scored_on_all_tasks_in_stage_3_alone() -> None:
    tasks = ["sst2", "mrpc"]
    config = load_config("efficientbert", {"tasks": tasks, "stage3.scored_on": "mean"})
    assert [config.scored_tasks(stage) for stage in "123"] == [("sst2",), ("sst2",), ("sst2", "mrpc")]
    assert load_config("efficientbert", {"tasks": tasks}).scored_tasks("3") == ("sst2",)


def test_the_rows_of_efficientbert() -> None:
    """Of MNLI's 392,702 training rows: section 4.3 trains candidates of stages 1 and 2 on a tenth and scores them on
    1 %, and scores those of stage 3 on the tenth that is not trained on, on MNLI alone.
    """
    config, rows = load_config("efficientbert"), 392_702
    assert config.search_fraction is not None
    held_out = round(config.search_fraction * rows)
    scored = [config.stage(stage).search_fraction for stage in "123"]
    assert [round(rows * fraction) if fraction else held_out for fraction in scored] == [3927, 3927, 39_270]
    assert math.ceil(config.candidate.fraction * (rows - held_out)) == 39_270
    assert (config.search_rows, config.scored_tasks("3"), config.final.all_rows) == ("last", ("mnli",), True)
    # The released sampler never explores, and nothing is confirmed.
    assert [config.stage(stage).sampler_settings()["exploration"] for stage in "123"] == [0, 0, 0]
    assert [config.stage(stage).confirm_seeds for stage in "123"] == [0, 0, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(
            (text, "not TOML: ")
            for text in ("seed = ", "[space", "a = 1\na = 2", "seed = " + 5000 * "1", "a = " + 100_000 * "[")
        ),
        ("stage1 = 3", r".*Field required"),
        ("seed = 1", r".*Field required \(and \d+ more\)"),
    ],
)
def test_broken_files(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"file: {message}") as caught:
        parse_config(text, "file", {"stage1.trials": 3})
    assert len(str(caught.value)) < 300


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes('teacher = "Müller"'.encode("latin-1"))
    (tmp_path / "folder.toml").mkdir()
    for name, message in (
        ("missing.toml", "No such file or directory"),
        ("folder.toml", "Is a directory"),
        ("latin.toml", "is not UTF-8 text"),
    ):
        with pytest.raises(ConfigError, match=f"{name}: {message}"):
            load_config(str(tmp_path / name))
    with pytest.raises(ConfigError, match="unknown preset 'dmeo'; did you mean 'demo'\\?"):
        load_config("dmeo")


@pytest.mark.parametrize(
    ("given", "length"), [({"mnli": 64}, 64), ({"mnli": 64, "mnli_mismatched": 32}, 32), ({}, 128)]
)
def test_a_further_dev_split_is_cut_as_its_task(given: dict[str, int], length: int) -> None:
    config = load_config("minilm", {"tasks": ["mnli_mismatched"], "max_length_of": given, "max_length": 128})
    assert config.row_length == length
