"""The test splits of GLUE, which have no labels, and the files in which predictions for them are submitted."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distill.tasks.readers import hub
from distill.tasks.readers.columns import check_columns
from distill.tasks.readers.glue import TASKS, official_files, read_cells
from distill.tasks.splits import Split
from distill.tasks.task import TaskError
from distill.tasks.types import REGRESSION
from foundation.files import write_text

# Task -> the name of its file in a submission, the official file of its test split, and that split on the hub.
SUBMISSIONS = {name: (f"{TASKS[name].folder}.tsv", "test.tsv", "test") for name in TASKS if name != "snli"} | {
    "mnli": ("MNLI-m.tsv", "test_matched.tsv", "test_matched"),
    "mnli_mismatched": ("MNLI-mm.tsv", "test_mismatched.tsv", "test_mismatched"),
}


def read_test(name: str, data: Path | None = None) -> tuple[list[str], Split]:
    """The indices and the rows of a task's test split, from the official file in the folder `data` or from the hub. All
    labels are 0.
    """
    if name not in SUBMISSIONS:
        raise TaskError(f"the task {name!r} has no test split to predict; there are those of {', '.join(SUBMISSIONS)}")
    source = TASKS[name]
    _, file, split = SUBMISSIONS[name]
    if data is None:
        table = hub.columns(source.hub[0], split, source.hub[1])
        check_columns(":".join(filter(None, source.hub)), source.hub_texts, table)
        texts: list[Sequence[str]] = list(zip(*(table[column] for column in source.hub_texts), strict=True))
        indices = [str(index) for index in table.get("idx", range(len(texts)))]
    else:
        (path,) = official_files(source, data, file)
        # QQP calls the index "id".
        cells, _ = read_cells(path, ("id" if name == "qqp" else "index", *source.texts))
        if not cells:
            raise TaskError(f"{path}: no rows")
        indices, texts = [index for _, (index, *_) in cells], [row for _, (_, *row) in cells]
    first, *second = zip(*texts, strict=True)
    return indices, Split(first, second[0] if second else None, (0,) * len(texts))


def write_submission(name: str, indices: Sequence[str], predictions: Sequence[Any], folder: Path) -> Path:
    """Write the file of a task's predictions; returns its path.

    Args:
        predictions: indices of classes, or numbers. GLUE takes names of classes in inference tasks and indices in all
            others; numbers are cut to the range of STS-B, 0 to 5.
    """
    source, (file, _, _) = TASKS[name], SUBMISSIONS[name]
    if source.task.task_type == REGRESSION:
        values = [f"{min(5.0, max(0.0, float(value))):.3f}" for value in predictions]
    elif source.numbers:
        values = [str(int(value)) for value in predictions]
    else:
        values = [source.task.labels[int(value)] for value in predictions]
    rows = "".join(f"{index}\t{value}\n" for index, value in zip(indices, values, strict=True))
    write_text(folder / file, f"index\tprediction\n{rows}")
    return folder / file
