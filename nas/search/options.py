"""The options of `nas.search`: the parser, checks, and the values of the configuration that they override."""

import argparse
import re
from pathlib import Path

from distill.choices import OBJECTIVES, TASKS, columns, listing, tasks
from distill.cli import DEVICE_HELP, Parser, add_output_options, device, several_processes
from foundation.errors import shortened
from nas.config.load import Given, given_values
from nas.config.schema import ConfigError
from nas.search.choices import GOALS, SAMPLERS, described_presets, samplers

# The preset of a new study if the command names none.
DEFAULT = "demo"
# The stages that the command runs, in order.
STAGES = {"1": ("1",), "2": ("2",), "3": ("3",), "all": ("1", "2", "3")}

EPILOG = """examples:
  {command} --stage all                            all three stages of the demo
  {command} --stage all --trials 20 --study small  a quick look
  {command} --stage 1 --max-latency 0.25x          a student four times as fast as its teacher
  {command} --stage 1 --keep 99%                   a small latency at which 99 % of the score is kept
  {command} --stage 1 --goals score,macs           the front of score and cost; then nas.pick
  {command} --stage all --preset minilm --tasks rte --data glue    official files in the folder glue
  {command} --stage all --resume                   continue after Ctrl-C or a crash
  {command} --stage all --dry-run                  only say what would be done, and roughly how long it takes
then train the winner:
  {train} results/demo/architecture.json

presets (--preset):
{presets}

samplers (--sampler):
{samplers}

goals (--goals):
{goals}

tasks (--tasks); or your own rows, by [rows.NAME] in a .toml file:
{tasks}

objectives of the distillation, by [objective] in a .toml file:
{objectives}
"""


def parser() -> Parser:
    result = Parser(
        prog="nas.search",
        description="Search the heads, FFNs and layers of a small BERT-like encoder that learns from a large one.",
    )
    result.usage = f"{result.prog} --stage {{1,2,3,all}} [option ...]"
    command = result.prog if result.prog.startswith("ffn-") else f"python -m {result.prog}"
    result.epilog = EPILOG.format(
        command=command,
        train="ffn-train-final" if result.prog == command else "python train_final.py",
        presets=columns(described_presets()),
        samplers=columns(SAMPLERS),
        goals=columns(GOALS),
        tasks=columns(TASKS),
        objectives=columns(OBJECTIVES),
    )
    for add_options in (_add_search, _add_budget, _add_running):
        add_options(result)
    return result


def _add_search(result: Parser) -> None:
    add = result.add_argument_group("what to search").add_argument
    stage = (
        "1: operations and sizes (heads, stacks, widths, experts) together; 2: operations; 3: sizes, on all tasks; "
        "all: one after the other"
    )
    add("--stage", choices=STAGES, required=True, help=stage)
    preset = "a preset or a .toml file; '?' lists the presets (default: config.toml of the study, else demo)"
    add("--preset", action=listing(described_presets), metavar="NAME", help=preset)
    sampler = "what proposes candidates; '?' lists the samplers (default: the preset's; nsga2 for two goals)"
    add("--sampler", action=listing(samplers), metavar="NAME", help=sampler)
    goals = (
        "score, or two goals: score,params; score,macs; score,latency; '?' lists them (default: score; --objective is "
        "the old name of this option)"
    )
    add("--goals", "--objective", action=listing(lambda: GOALS), metavar="GOALS", help=goals)
    start = "architecture that stage 2 or 3 refines (default: the previous stage's winner)"
    add("--from", dest="start", type=Path, metavar="ARCH.json", help=start)
    sandwich = (
        "in stage 3, train the largest, the smallest and two random architectures in every step of the one-shot "
        "supernet (default: one random one)"
    )
    add("--sandwich", action="store_true", default=None, help=sandwich)


def _add_budget(result: Parser) -> None:
    add = result.add_argument_group("budget").add_argument
    trials = "candidates to evaluate in each stage, baselines included (default: the preset's)"
    add("--trials", type=int, metavar="N", help=trials)
    add("--max-params", metavar="15M", help="limit on the student's parameters, pooler and classifier included")
    add("--max-macs", metavar="1G", help="limit on its multiply-accumulates for a sentence of 128 tokens")
    latency = (
        "limit on its latency, in milliseconds or relative to the teacher's latency (default: the preset's, unless "
        "--max-params, --max-macs, --max-size or --keep is given)"
    )
    add("--max-latency", metavar="12ms|0.25x", help=latency)
    size = "limit on the file of its weights, as --runtime stores them (KB, MB or GB: powers of ten)"
    add("--max-size", metavar="10MB", help=size)
    runtime = "in what the student will run, for its latency and size; ONNX is on the processor (default: the preset's)"
    add("--runtime", metavar="torch|onnx|onnx-int8", help=runtime)
    add("--threads", type=int, metavar="N", help="threads for latencies (default: the preset's, else torch's)")
    add("--batch", type=int, metavar="N", help="sentences in a batch for latencies (default: 1)")
    add("--tokens", type=int, metavar="N", help="tokens of a sentence for latencies (default: max_length)")
    keep = (
        "instead of a limit: find a small budget (of latency; with --goals score,params: of parameters) within which a "
        "student keeps this percentage of the teacher's score, and search within it"
    )
    add("--keep", metavar="99%", help=keep)


def _add_running(result: Parser) -> None:
    """Add the options for the data, for how the search runs, and for what it writes."""
    add = result.add_argument_group("data and teacher").add_argument
    add("--teacher", metavar="MODEL", help="a BERT-like encoder: folder, or name on the hub")
    add("--data", metavar="DIR", help="folder of the tasks' official files (default: downloaded from the hub)")
    several = "tasks to search on: stages 1 and 2 use the first, stage 3 all; '?' lists the tasks"
    add("--tasks", action=listing(tasks), metavar="A,B", help=several)
    add = result.add_argument_group("how to run").add_argument
    dry_run = (
        "print the search space, the budget, the baselines, what is still to be prepared, and an estimate of the time; "
        "train nothing"
    )
    add("--dry-run", action="store_true", help=dry_run)
    prepare = (
        "prepare the teacher, the supernet and whatever else the first stage needs, keep it in the cache, and stop; "
        "torchrun or accelerate launch can run this in several processes"
    )
    add("--prepare", action="store_true", help=prepare)
    add("--resume", action="store_true", help="continue an interrupted study")
    workers = "candidates to evaluate at a time (default: one per processor, at most 2)"
    add("--workers", type=int, metavar="N", help=workers)
    add("--device", default="auto", choices=["auto", "cpu", "cuda"], help=DEVICE_HELP)
    add("--address", metavar="HOST:PORT", help="a running Ray cluster")
    add("--seed", type=int, metavar="N", help="seed of everything random (default: the preset's)")
    group = result.add_argument_group("output")
    add_output_options(group, "the results")
    study = "name of the study and of its folder (default: the preset's name)"
    group.add_argument("--study", metavar="NAME", help=study)
    out = "folder of the studies' folders (default: %(default)s)"
    group.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help=out)
    storage = "Optuna storage URL (default: study.db in the study's folder)"
    group.add_argument("--storage", metavar="URL", help=storage)


def check(options: argparse.Namespace, study: str) -> None:
    """Raise ConfigError for mistakes that can be seen in the options alone."""
    check_arguments(study, options.stage, options.start is not None, options.workers, options.address, options.device)
    if several_processes() and not options.prepare:
        raise ConfigError(
            "only the preparation runs in several processes: add --prepare, then start the search in one process "
            "(--workers sets how many candidates it evaluates at a time)"
        )


def check_arguments(
    study: str, stage: str, starts: bool, workers: int | None, address: str | None, on_device: str
) -> None:
    """Raise ConfigError for what cannot be searched with any configuration.

    Args:
        study: the name of the study's folder.
        stage: a key of `STAGES`.
        starts: whether there is an architecture to refine.
    """
    if not re.fullmatch(r"\w[\w.+-]*", study):
        raise ConfigError(
            f"--study {study!r}: use only letters, digits, '.', '_', '+' and '-', "
            "and start with a letter, a digit or '_'"
        )
    if stage not in STAGES:
        raise ConfigError(f"--stage: must be one of {', '.join(STAGES)}, not {stage!r}")
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise ConfigError(f"--workers: must be a whole number of at least 1, not {shortened(workers)}")
    if address is None:
        try:
            device(on_device)
        except argparse.ArgumentTypeError as error:
            raise ConfigError(f"--device {on_device}: {error}") from None
    if starts and stage not in ("2", "3"):
        raise ConfigError(
            "--from: only stages 2 and 3 refine an architecture; use --stage 2 or --stage 3, or leave out --from"
        )


def overrides(options: argparse.Namespace) -> dict[str, Given]:
    """The values that the options give in place of the configuration's, by dotted path, such as `space.max_params`.

    Raises:
        ConfigError: --goals does not go with --keep.
    """
    limits = (f"space.max_{cost}" for cost in ("params", "macs", "latency", "size"))
    deployment = (f"deployment.{name}" for name in ("runtime", "threads", "batch", "tokens"))
    trials = (f"stage{stage}.trials" for stage in STAGES[options.stage])
    result = given_values(options, "teacher", "data", "seed", *limits, *deployment, "one_shot.sandwich", *trials)
    if options.tasks is not None:
        result["tasks"] = Given("--tasks", options.tasks.split(","))
    if options.keep is not None:
        result["keep.fraction"] = Given("--keep", options.keep)
        if (cost := cost_to_minimize(options.goals)) is not None:
            result["keep.cost"] = Given("--goals", cost)
    elif options.goals is not None:
        result["goals"] = Given("--goals", options.goals)
    two_goals = options.keep is None and options.goals not in (None, "score")
    if (sampler := "nsga2" if two_goals and options.sampler is None else options.sampler) is not None:
        # The configuration of a study with two goals is valid only if the samplers of all stages, even of those that do
        # not run, support two goals.
        for stage in STAGES["all"] if two_goals else STAGES[options.stage]:
            result[f"stage{stage}.sampler"] = Given("--sampler", sampler)
    replacing = [
        f"--{name}" for name in ("max-params", "max-macs", "max-size", "keep") if vars(options)[name.replace("-", "_")]
    ]
    if replacing and options.max_latency is None and not (options.preset or "").endswith(".toml"):
        # The latency of a preset is a default; a user's own file means all its bounds.
        result["space.max_latency"] = Given(replacing[0], None)
    return result


def cost_to_minimize(goals: str | None) -> str | None:
    """The cost that --goals names when --keep is given: "latency" in "score,latency"; None if it names none.

    Raises:
        ConfigError: the option does not have this form.
    """
    if goals in (None, "score"):
        return None
    score, _, cost = goals.partition(",")
    if score != "score" or cost not in ("params", "macs", "latency"):
        raise ConfigError(f"--goals {goals!r}: with --keep, give score,params; score,macs; or score,latency")
    return cost
