"""What a search can choose by name is listed with a line each, in `--help` and by `?`."""

import pytest

from distill.choices import TASKS
from nas.config.load import Given, presets
from nas.samplers import SAMPLERS
from nas.search import choices
from nas.search.command import main
from nas.search.options import overrides, parser


def test_every_sampler_and_preset_has_a_line() -> None:
    assert choices.SAMPLERS.keys() == SAMPLERS.keys()
    lines = choices.described_presets()
    assert list(lines) == presets()
    # A comment of one line, not the beginning of a longer sentence.
    assert all(20 < len(line) < 100 and "#" not in line and "=" not in line for line in lines.values())


def test_the_goals_are_those_that_searches_accept() -> None:
    for goals in choices.GOALS:
        options = parser().parse_args(["--stage", "1", "--goals", goals])
        assert overrides(options)["goals"] == Given("--goals", goals)


@pytest.mark.parametrize(
    ("option", "lines"),
    [
        ("--preset", choices.described_presets()),
        ("--sampler", choices.SAMPLERS),
        ("--goals", choices.GOALS),
        ("--tasks", TASKS),
    ],
    ids=["preset", "sampler", "goals", "tasks"],
)
def test_a_question_mark_lists_the_choices(
    option: str, lines: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([option, "?"])  # without --stage
    assert stopped.value.code in (0, None)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1) for line in printed] == [[name, line] for name, line in lines.items()]
    help_text = parser().format_help()
    assert all(line in help_text for line in printed)
