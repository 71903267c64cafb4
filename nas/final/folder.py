"""The output folder of a final training."""

from pathlib import Path

from nas.config.schema import ConfigError

# The subfolder with the state of unfinished trainings, which is removed once the checkpoint is written.
STATE = "state"
# The file with the measurements, which a finished training writes.
METRICS = "metrics.json"


def make_folder(out: Path, resume: bool) -> None:
    """Make the output folder.

    Raises:
        ConfigError: it cannot be made, or holds files that must not be overwritten.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is not a folder")
    if out.exists() and any(out.iterdir()):
        unfinished = (out / STATE).exists()
        if not (resume and unfinished):
            resumable = "; --resume continues the training in it" if unfinished else ""
            raise ConfigError(f"--out {out} exists and is not empty: choose another folder{resumable}")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from None


def make_folder_of_tasks(out: Path, resume: bool) -> None:
    """Make the folder of several tasks.

    Raises:
        ConfigError: it cannot be made, or holds files that must not be overwritten.
    """
    begun = any((folder / name).exists() for folder in out.glob("*") for name in (METRICS, STATE))
    if not (resume and begun):
        make_folder(out, resume=False)
