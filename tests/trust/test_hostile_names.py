"""Names in a study that a browser or a typesetter would execute are shown as what they are."""

import json
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from nas.report import command
from nas.report.notes import add_note
from nas.study import ledger
from nas.study.attributes import FAILURE, ORIGIN, TEACHER
from nas.study.storage import sqlite_url
from tests import requirements
from tests.nas.report import synthetic
from tests.nas.report.test_page import Elements
from tests.nas.study.test_dashboard import dashboard, rendered
from tests.trust_counts import Cases

OWNED = "document.title='owned'"
NAMES = [
    f"<script>{OWNED}</script>",
    f'"><img src=x onerror="{OWNED}">',
    f"</title></td><svg onload={OWNED}>",
    f"[a](javascript:{OWNED})",
    f"</script><iframe srcdoc='<script>parent.{OWNED}</script>'>",
    "$\\frac{1$ \\href{javascript:1}{x}",
    "`x` **b** | a | b | \n\n# title\n<details open ontoggle=" + OWNED + ">",
    "\u202egnp.exe \x1b[31m \u0000",
]


def poisoned(folder: Path, name: str) -> None:
    """Put the name in the place of every text of a study that a command shows."""
    with sqlite3.connect(folder / "study.db") as database:
        for table in ("trial_user_attributes", "study_user_attributes"):
            rows = database.execute(f"SELECT rowid, key, value_json FROM {table}").fetchall()
            for row, key, value in rows:
                changed = json.loads(value)
                if key in (ORIGIN, FAILURE):
                    changed = name
                elif key == TEACHER:
                    changed["task"] = name
                database.execute(f"UPDATE {table} SET value_json = ? WHERE rowid = ?", (json.dumps(changed), row))
    database.close()
    for best in folder.glob("stage-*/best.json"):
        content = json.loads(best.read_text())
        for row in content["finalists"]:
            row["origin"] = name
        best.write_text(json.dumps(content))


@pytest.mark.slow
@pytest.mark.trust
def test_reports(tmp_path: Path, cases: Callable[..., Cases]) -> None:
    """Hostile names in a report, in a browser."""
    counts = cases(sample=len(NAMES), full=len(NAMES))
    browser = requirements.program("chromium")
    for number, name in enumerate(NAMES[: counts.wanted]):
        folder = synthetic.write(tmp_path / f"{number} <img src=x onerror={OWNED}>", trials=8)
        poisoned(folder, name)
        out = tmp_path / f"report-{number}.html"
        assert command.main([str(folder), "--out", str(out)]) == 0
        elements = Elements(out.read_text(encoding="utf-8"))
        assert not {tag for tag, _ in elements.found} & {"script", "svg", "iframe", "details", "object", "embed"}
        for tag, attributes in elements.found:
            assert not [key for key in attributes if key.startswith("on")]
            assert tag != "img" or re.match(r"data:image/(png|svg\+xml);base64,", attributes["src"] or "")
            assert tag != "a" or (attributes["href"] or "").startswith("#")
        shown = rendered(browser, out.as_uri(), tmp_path / "profile")
        assert "<title>owned" not in shown and "<title>Study" in shown
        counts["shown as they are"] += 1


@pytest.mark.slow
@pytest.mark.trust
def test_notes_in_the_dashboard(tmp_path: Path, cases: Callable[..., Cases]) -> None:
    """Hostile names in the notes of the dashboard, in a browser."""
    counts = cases(sample=len(NAMES), full=len(NAMES))
    browser, url = requirements.program("chromium"), sqlite_url(tmp_path / "study.db")
    study = ledger.open_study(url, "s/stage-1")
    names = NAMES[: counts.wanted]
    for name in names:
        trial, _ = ledger.ask(study, synthetic.SPACE, name)
        ledger.fail(study, trial.number, name)
        add_note(study, trial.number)
    with dashboard(url) as address:
        for number in range(len(names)):
            page = rendered(browser, f"{address}/dashboard/studies/1/trials?numbers={number}", tmp_path / "profile")
            assert f"Trial {number}: " in page
            assert "<title>owned" not in page
            counts["shown as they are"] += 1
