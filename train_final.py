"""Train a searched architecture and leave an ordinary Hugging Face checkpoint.

    python train_final.py results/demo/architecture.json [--out DIR]
    python train_final.py efficientbert --preset efficientbert-tiny --transfer --out DIR
    accelerate launch train_final.py ...                                  in several processes

The student inherits its weights from the study's supernet, learns from the teacher on text without labels, then on the
task, and is measured on the whole dev split beside its teacher and its base model, which gets the same training.
"""

import json
import os
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from distill.cli import DONE, INTERRUPTED, Parser, device, guard
from distill.files import write_text
from nas.config.load import load_config
from nas.config.schema import ConfigError, StudyConfig
from search_spaces import cost
from search_spaces.architecture import Architecture, Base
from search_spaces.published import PUBLISHED, load

# In the folder of the checkpoint until all is done.
STATE = "state"
# What the trainings are called.
PHASES = {"pretrain": "pre-training", "final": "fine-tuning"}
# Of several processes the first keeps the files and speaks.
FIRST = os.environ.get("RANK", "0") == "0"


def parser() -> Parser:
    result = Parser(prog="train_final.py", description="Train a searched architecture by distillation.")
    result.add_argument(
        "architecture", help="architecture.json of a study, a file of that format, or the name of a published one"
    )
    result.add_argument("--out", type=Path, help="folder of the checkpoint (default: final beside the architecture)")
    result.add_argument(
        "--transfer", action="store_true", help="use its genes on the configuration's base, also a deeper one"
    )
    result.add_argument("--preset", help="preset or .toml file (default: config.toml beside the architecture)")
    result.add_argument("--seed", type=int, help="of the order of batches and of dropout (default: the study's)")
    result.add_argument("--device", type=device, default="auto", choices=["auto", "cpu", "cuda"])
    result.add_argument("--skip-base", action="store_true", help="do not train and measure the base model")
    result.add_argument("--resume", action="store_true", help="go on with a training that was cut short")
    result.add_argument("--tensorboard", type=Path, metavar="DIR", help="log losses there")
    return result


def main(argv: list[str] | None = None) -> int:
    options = parser().parse_args(argv)

    def command() -> int:
        architecture = load(options.architecture)
        folder = Path(options.architecture).parent
        beside = folder / "config.toml"
        if not options.preset and options.architecture in PUBLISHED:
            raise ConfigError(f"{options.architecture} is a published architecture: give the --preset to train it with")
        preset = options.preset or (str(beside) if beside.exists() else "demo")
        config = load_config(preset)
        out = options.out or folder / "final"
        if FIRST:
            make_folder(out, options.resume)
        seed = config.seed if options.seed is None else options.seed
        if not 0 <= seed < 2**31:
            raise ConfigError(f"--seed {seed}: from 0 to {2**31 - 1}")
        return run(config, architecture, out, seed, options)

    try:
        return guard("train_final.py", command)
    except KeyboardInterrupt:
        print("train_final.py: interrupted; the same command with --resume goes on", file=sys.stderr)
        return INTERRUPTED


def make_folder(out: Path, resume: bool) -> None:
    """Raises ConfigError where the folder of the checkpoint cannot be made, or holds what must not be lost."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is no folder")
    if out.exists() and any(out.iterdir()):
        unfinished = (out / STATE).exists()
        if not (resume and unfinished):
            resumable = "; --resume goes on with it" if unfinished else ""
            raise ConfigError(f"--out {out} exists and is not empty: choose another folder{resumable}")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from None


def run(config: StudyConfig, architecture: Architecture, out: Path, seed: int, options: Any) -> int:
    """Train, measure, save."""
    import torch
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from transformers.utils import logging as transformers_logging

    from distill.tasks.encoding import collate
    from distill.tasks.types import CLASSIFICATION, MODELS, REGRESSION
    from distill.training.distillation import make
    from distill.training.evaluation import evaluate
    from distill.training.progress import Progress, losses
    from nas.budget import limits_of
    from nas.evaluate import Evaluator
    from nas.latency.table import latencies
    from nas.preparation.one_shot import OneShotEvaluator, prepare_one_shot
    from nas.preparation.phases import FINAL, ON_TEXT, TrainingPhase, training_phase
    from nas.preparation.prepare import prepare, training
    from nas.preparation.workspace import projections
    from nas.stages import plan as stage_plan

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()

    def command(architecture: Architecture = architecture) -> int:
        state, started = out / STATE, recorded(config, architecture, seed)
        note = state / "training.json"
        if note.exists() and note.read_text(encoding="utf-8") != started:
            raise ConfigError(f"--resume: {out} is of another configuration, architecture or seed")
        console = Console(highlight=False, soft_wrap=True, quiet=not FIRST)
        with Progress(console) as progress:
            workspace = prepare(config, options.device, progress.prepare, outputs=False)
            base, graph = workspace.base()
            if options.transfer:
                architecture = architecture.transferred(base)
            if searched(architecture.base) != searched(base):
                raise ConfigError(
                    f"the architecture's base is {architecture.base}; this configuration's is {base}; --transfer uses "
                    "its genes there"
                )
            stack = max(genes.stack for genes in architecture.layers)
            if stack > max(config.space.stacks):
                most = max(config.space.stacks)
                raise ConfigError(f"the architecture has a stack of {stack}; the supernet has {most}")
            evaluator = Evaluator(workspace, options.device)
            accelerator, task, pad_id = evaluator.accelerator, evaluator.task, evaluator.like.pad_token_id
            if architecture.base.head_experts > 1 and task.kind not in (CLASSIFICATION, REGRESSION):
                raise ConfigError(f"the architecture has experts in its head, which a {task.kind} has not")
            if FIRST:
                write_text(note, started)
            teacher = evaluator.teacher().eval()
            folders = workspace.folders
            dev, split = folders.rows("dev"), folders.split("dev")

            plan: list[TrainingPhase] = []
            for name in FINAL:
                try:
                    if found := training_phase(config, name, folders):
                        # The objective may learn nothing from text in other ways than by its name.
                        make(config.objective.name, found.settings, evaluator.like, teacher.config, found.rows)
                        plan.append(found)
                except (ConfigError, ValueError) as error:
                    if name not in ON_TEXT:
                        raise
                    progress.say(f"no pre-training: {str(error).removeprefix(f'{name}: ')}")
            cut = evaluator.student
            if config.final.start == "shared":
                limits = limits_of(config, workspace, options.device, progress.prepare)
                space = stage_plan(config, workspace, "3", architecture, limits).space
                shared = prepare_one_shot(workspace, space, options.device, progress.prepare)
                cut = OneShotEvaluator(shared, options.device).student

            def told(write: Any, what: str, steps: int, step: int, loss: float) -> None:
                progress.prepare(what, step / steps)
                write(step, loss)

            def trained(name: str, genes: Architecture) -> Any:
                # The base model is not among the sizes that a weight-sharing supernet has learned.
                model = cut(genes) if name == "student" else evaluator.student(genes)
                learned = projections(workspace.supernet)
                for found in plan:
                    phase = PHASES[found.table]
                    keep = state / name.replace(" ", "-") / found.table
                    with training(found.table), losses(options.tensorboard, f"{name}/{phase}", accelerator) as write:
                        after_step = partial(told, write, f"{name}: {phase}", found.recipe.steps)
                        learned = evaluator.distil(model, found, seed, learned, after_step, keep)
                return model.eval()

            architectures = {"student": architecture}
            if not options.skip_base:
                architectures["base model"] = Architecture.uniform(base, graph=graph)
            models = {"teacher": teacher}
            models |= {name: trained(name, genes) for name, genes in architectures.items()}
            if not accelerator.is_main_process:
                return DONE
            progress.prepare("measuring", None)
            measured: dict[str, dict[str, Any]] = {}
            loads = evaluator.loads(models["student"], dev)
            example = collate(dev, dev.lengths.argsort()[len(dev) // 2 : len(dev) // 2 + 1], pad_id)
            batch = {key: tensor.to(accelerator.device) for key, tensor in example.items()}
            for name, model in models.items():
                scores = evaluate(model, dev, split, task, accelerator=accelerator, pad_id=pad_id)
                measured[name] = {
                    metric: {"value": score.value, "standard_error": score.standard_error}
                    for metric, score in scores.items()
                }
            for name, latency in latencies(models, batch).items():
                measured[name]["latency_ms"] = 1e3 * latency.median
                measured[name]["latency_quartiles_ms"] = [1e3 * latency.lower, 1e3 * latency.upper]
            for name, model in models.items():
                measured[name]["params"] = sum(parameter.numel() for parameter in model.parameters())
            tokens = batch["input_ids"].shape[1]
            for name, genes in ({"teacher": Architecture.uniform(base, graph=graph)} | architectures).items():
                if name == "teacher" and config.base != "teacher":
                    continue  # of another shape
                idle = cost.params(genes, workspace.labels) - cost.params_active(genes, workspace.labels)
                measured[name]["params_active"] = measured[name]["params"] - idle
                measured[name]["ffn_params"] = sum(cost.ffn_params(base, layer) for layer in genes.layers)
                measured[name]["macs"] = cost.macs(genes, tokens, workspace.labels, task.kind)

        models["student"].save_pretrained(out)
        evaluator.tokenizer.save_pretrained(out)
        architecture.save(out / "architecture.json")
        (out / "config.toml").write_text(config.to_toml(), encoding="utf-8")
        facts = {
            "task": config.task,
            "metrics": task.metrics,
            "dev_rows": len(split),
            "seed": seed,
            "tokens": tokens,
            "batch": 1,
            "device": str(accelerator.device),
            "processes": accelerator.num_processes,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "models": measured,
            "expert_load": [load.to_json() for load in loads],
        }
        (out / "metrics.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        shutil.rmtree(state, ignore_errors=True)
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for column in ("model", *task.metrics, "parameters", "in FFNs", "MACs", "latency", "speed-up"):
            table.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
        slowest = measured["teacher"]["latency_ms"]
        for name, row in measured.items():
            table.add_row(
                name,
                *(f"{row[metric]['value']:.4f} ± {row[metric]['standard_error']:.4f}" for metric in task.metrics),
                f"{row['params'] / 1e6:.2f} M",
                f"{row['ffn_params'] / 1e6:.2f} M" if "ffn_params" in row else "",
                f"{row['macs'] / 1e6:.0f} M" if "macs" in row else "",
                f"{row['latency_ms']:.1f} ms",
                f"{slowest / row['latency_ms']:.2f}×",
            )
        what = f"{config.task}: {len(split)} dev rows; MACs and latency of one sentence of {tokens} tokens"
        console.print(what, soft_wrap=True)
        console.width = max(console.width, 200)  # figures that are cut off are none
        console.print(table)
        for shares in loads:
            console.print(f"experts of {shares}", soft_wrap=True)
        console.print(f"wrote {out}: {MODELS[task.kind].__name__}.from_pretrained(..., trust_remote_code=True)")
        return DONE

    return command()


def searched(base: Base) -> Base:
    """A base without what a study does not decide."""
    return replace(base, attention_experts=1, head_experts=1)


def recorded(config: StudyConfig, architecture: Architecture, seed: int) -> str:
    """What a training that is resumed must have in common with the one before."""
    return json.dumps({"config": config.to_toml(), "architecture": architecture.to_json(), "seed": seed})


if __name__ == "__main__":
    sys.exit(main())
