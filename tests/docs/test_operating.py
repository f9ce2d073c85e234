"""What the pages for operators have other programs read: units, images, manifests, DAGs. Each is read as they read it,
and the commands in it are commands of Ferryman."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.cli.test_commands_in_messages import parse
from tests.support.page import HOW_TO


def blocks(page: str, language: str) -> list[str]:
    text = (HOW_TO / page).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_the_units_are_units_whose_command_parses(tmp_path: Path) -> None:
    """Read as systemd does, where there is one."""
    service, timer = blocks("run-on-a-schedule.md", "ini")
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.read_string(service)
    command = shlex.split(unit["Service"]["execstart"])
    assert command[0].endswith("/ferryman")
    parse(command[1:])
    (tmp_path / "notes.service").write_text(service.replace(command[0], "/bin/true").replace("=ferryman\n", "=root\n"))
    (tmp_path / "notes.timer").write_text(timer)
    if (systemd := shutil.which("systemd-analyze")) is not None:
        for name in ("notes.service", "notes.timer"):
            done = subprocess.run([systemd, "verify", tmp_path / name], capture_output=True, text=True, check=False)
            assert name not in done.stderr, done.stderr


def test_the_line_for_cron_parses() -> None:
    [line] = blocks("run-on-a-schedule.md", "text")
    words = shlex.split(line)
    assert len(re.findall(r"[\d*/,-]+", " ".join(words[:5]))) == 5
    assert words[5].endswith("/ferryman")
    parse(words[6:])


@pytest.mark.parametrize(("code", "ends"), [(0, None), (3, None), (4, None), (1, RuntimeError), (2, ValueError)])
def test_the_dag_runs_the_command_and_tells_airflow_what_its_code_means(
    code: int, ends: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With as much of Airflow as it imports."""
    called: list[list[str]] = []

    def run(command: list[str]) -> Any:
        called.append(command)
        return SimpleNamespace(returncode=code)

    modules: dict[str, Any] = {
        name: ModuleType(name) for name in ("airflow", "airflow.decorators", "airflow.exceptions")
    }
    plain = {name: lambda **_: lambda function: function for name in ("dag", "task")}
    vars(modules["airflow.decorators"]).update(plain)
    vars(modules["airflow.exceptions"]).update(AirflowFailException=ValueError)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(subprocess, "run", run)
    [text] = blocks("run-on-a-schedule.md", "python")
    if ends is None:
        exec(compile(text, "notes_dag.py", "exec"), {})
    else:
        with pytest.raises(ends):
            exec(compile(text, "notes_dag.py", "exec"), {})
    [command] = called
    assert command[0] == "ferryman"
    parse(command[1:])


def test_the_image_runs_commands_that_there_are() -> None:
    """Instructions of a Dockerfile only, in which every command of Ferryman parses."""
    [text] = blocks("run-in-a-container.md", "dockerfile")
    lines = [line for line in text.replace("\\\n", "").splitlines() if line and not line.startswith("#")]
    instructions = [line.partition(" ")[::2] for line in lines]
    assert instructions[0][0] == "FROM"
    assert {name for name, _ in instructions} <= {
        "FROM",
        "RUN",
        "USER",
        "WORKDIR",
        "COPY",
        "VOLUME",
        "ENTRYPOINT",
        "CMD",
    }
    arguments = dict(instructions)
    assert json.loads(arguments["ENTRYPOINT"]) == ["ferryman"]
    parse(json.loads(arguments["CMD"]))
    for name, rest in instructions:
        if name == "RUN":
            subprocess.run(["bash", "-n", "-c", rest], check=True)
            if rest.startswith("ferryman "):
                parse(shlex.split(rest)[1:])
    for line in blocks("run-in-a-container.md", "text")[0].splitlines():
        words = shlex.split(line)
        behind_the_image = words[words.index("notes") + 1 :]
        if words[1] == "run" and behind_the_image:
            parse(behind_the_image)


def test_the_manifests_fit_each_other() -> None:
    """One pod at a time, its arguments parse, and the state is on the claim."""
    [text] = blocks("run-in-a-container.md", "yaml")
    deployment, claim = YAML(typ="safe").load_all(text)
    spec = deployment["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    pod = spec["template"]["spec"]
    [container] = pod["containers"]
    parse([str(each) for each in container["args"]])
    [mount] = container["volumeMounts"]
    [volume] = pod["volumes"]
    assert (mount["name"], mount["mountPath"]) == (volume["name"], "/state")
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
