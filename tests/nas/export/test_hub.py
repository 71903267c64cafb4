"""Publishing on the hub: what is refused before any work, and uploads to a local server that stands for the hub."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from huggingface_hub import ModelCard

from nas.export.hub import HubError, Publication
from tests.nas.export.test_command import checkpoint  # noqa: F401
from tests.nas.tiny_study import PROJECT


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's HTTP interface that creates a repository and commits files to it, as `files`."""

    created: list[dict[str, Any]]
    files: dict[str, bytes]

    def do_GET(self) -> None:
        assert self.path.endswith("/whoami-v2")
        if self.headers["Authorization"] != "Bearer hf_right":
            self.answer({"error": "Invalid user token."}, 401)
            return
        self.answer({"name": "me", "type": "user"})

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if self.path == "/api/repos/create":
            self.created.append(json.loads(text))
            self.answer({"url": f"http://{self.headers['Host']}/me/small", "id": "me/small"})
        elif "/preupload/" in self.path:
            files = [file | {"uploadMode": "regular", "shouldIgnore": False} for file in json.loads(text)["files"]]
            self.answer({"files": files})
        elif "/commit/" in self.path:
            for line in map(json.loads, text.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self.answer({"commitUrl": f"http://{self.headers['Host']}/me/small/commit/1", "commitOid": "1"})
        else:
            self.answer({}, 200)  # the check of the card

    def answer(self, content: Any, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *unused: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[tuple[str, type[Hub]]]:
    """The address of the server, and its state."""
    state = type("State", (Hub,), {"created": [], "files": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), state)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", state
    server.shutdown()
    server.server_close()


def push(address: str, code: str, *words: object, token: str = "hf_right") -> subprocess.CompletedProcess[str]:
    """Run code in a process for which the hub is at this address."""
    given = {"HF_ENDPOINT": address, "HF_TOKEN": token, "HF_HUB_OFFLINE": "0", "PYTHONPATH": str(PROJECT)}
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(command, env=os.environ | given, capture_output=True, text=True)


EXPORT = "import sys; from nas.export.command import main; sys.exit(main())"
IN_PYTHON = """
import sys
from nas import Compressed
print(Compressed.load(sys.argv[1]).push_to_hub("me/small", license="mit", base_model=None, private=True))
"""


def test_an_export(checkpoint: Path, hub: tuple[str, type[Hub]], tmp_path: Path) -> None:  # noqa: F811
    """The card has the scores, the license and the base model; the configuration stays here."""
    address, state = hub
    words = [checkpoint, "--out", tmp_path / "out", "--skip-latency", "--json", "--push", "me/small"]
    result = push(address, EXPORT, *words, "--license", "apache-2.0", "--base-model", "me/large")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["url"] == f"{address}/me/small"
    (made,) = state.created
    assert made["name"] == "small" and made["organization"] == "me" and not made.get("private")
    uploaded, there = state.files, {str(f.relative_to(tmp_path / "out")) for f in (tmp_path / "out").rglob("*")}
    assert there - uploaded.keys() == {"config.toml"} and uploaded.keys() <= there
    for name, content in uploaded.items():
        assert content == (tmp_path / "out" / name).read_bytes()
    card: Any = ModelCard(uploaded["README.md"].decode()).data
    assert (card.license, card.base_model, card.model_name) == ("apache-2.0", "me/large", "me/small")
    metrics = json.loads(uploaded["metrics.json"])
    (of_card, *_), name = card.eval_results, metrics["metrics"][0]
    assert of_card.metric_type == name
    assert of_card.metric_value == round(metrics["models"]["student"][name]["value"], 4)
    assert "config.toml" not in uploaded["README.md"].decode()


def test_in_python(checkpoint: Path, hub: tuple[str, type[Hub]]) -> None:  # noqa: F811
    address, state = hub
    result = push(address, IN_PYTHON, checkpoint)
    assert result.stdout.split() == [f"{address}/me/small"], result.stderr
    assert "private" in (
        state.created[0].get("visibility"),
        *(name for name, on in state.created[0].items() if on is True),
    )
    assert {"README.md", "config.json", "model.safetensors", "architecture.json", "metrics.json"} <= state.files.keys()
    card: Any = ModelCard(state.files["README.md"].decode())
    assert card.data.license == "mit" and card.data.base_model is None and "## Training" not in card.text


def test_a_wrong_token(checkpoint: Path, hub: tuple[str, type[Hub]], tmp_path: Path) -> None:  # noqa: F811
    """It is noticed before the work."""
    words = [checkpoint, "--out", tmp_path / "out", "--push", "me/small", "--license", "mit", "--base-model", "none"]
    result = push(hub[0], EXPORT, *words, token="hf_wrong")
    (line,) = result.stderr.splitlines()
    assert result.returncode == 2 and "--push: " in line and "token" in line.lower()
    assert not (tmp_path / "out" / "config.json").exists()


@pytest.mark.parametrize(
    ("publication", "said"),
    [
        (Publication("me/small"), "--push needs the license of what is published: add --license, such as apache-2.0"),
        (Publication("me/small", "mit"), "--push needs the teacher's name on the hub: add --base-model NAME, or none"),
        (Publication("a/b/c", "mit", "none"), "--push: Repo id must be"),
        (Publication("me/small", "mit", "a b"), "--push: Repo id must"),
        (
            Publication(None, "MIT License"),
            "--license: must be an identifier of the hub such as apache-2.0, not 'MIT L",
        ),
        (Publication(private=True), "--private belongs to --push REPO: leave it out"),
    ],
)
def test_mistakes(publication: Publication, said: str) -> None:
    with pytest.raises(HubError, match=said):
        publication.check(None)
