"""What describes a saved agent is read without running code of the file."""

import base64
import dataclasses
import importlib
import json
import os
import pickle
import platform
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import pytest
from dm_env import specs

from distrl import presets
from distrl.agents.exploration import EpsilonSchedule
from distrl.agents.networks import NetworkConfig
from distrl.checkpointing.store import Checkpoint
from distrl.envs import suites
from distrl.errors import ConfigError
from distrl.policy import settings_of
from distrl.saved import saved_agent
from distrl.saved.plain_settings import ForeignError, decode, encode
from distrl.saved.saved_agent import PICKLE, SETTINGS, agent_writer, read_settings
from distrl.specs import EnvironmentSpec
from distrl.transforms import (
    TRANSFORMS,
    FrameStack,
    ObservationNormalizer,
    RewardWeights,
    by_name,
)

SPEC = EnvironmentSpec(
    {
        "pixels": specs.BoundedArray((2, 2), np.uint8, 0, 255, "pixels"),
        "joints": OrderedDict(
            b=specs.BoundedArray((3,), np.float32, np.array([-1, -np.inf, 0], np.float32), 2.0),
            a=specs.Array((), np.dtype(">f8"), "a"),
        ),
    },
    (specs.DiscreteArray(5, np.int64, "buttons"), specs.Array((2,), bool)),
    env_info={"success": specs.Array((), np.int8, "success")},
    reward_delay=3,
)


class Pair(NamedTuple):
    """A nest of the user's own."""

    left: Any
    right: Any


@dataclasses.dataclass
class Parts:
    """The parts of a task that `agent_writer` reads."""

    agent: Any
    transforms: tuple[Any, ...] = ()
    env_spec: EnvironmentSpec = SPEC


def parts() -> list[Parts]:
    """Those of every value of --agent, and of every transform that has defaults."""
    made = []
    for agent in presets.AGENTS:
        env = "Pendulum-v1" if agent in ("sac", "td3", "ddpg") else "CartPole-v1"
        env_spec = suites.make(env).spec()
        settings = presets.AGENTS[agent].preset(env_spec)
        names = settings.defaults(env_spec).transforms
        made.append(Parts(settings, by_name(names), env_spec))
    transforms = [
        kind()
        for kind in TRANSFORMS.values()
        if all(field.default is not dataclasses.MISSING for field in dataclasses.fields(kind))
    ]
    weights = RewardWeights((0.5, 2.0))
    made.append(Parts(EpsilonSchedule(1.0, np.float64(0.1), 10), (*transforms, weights)))
    made.append(Parts(NetworkConfig(hidden_sizes=(8, 16)), (FrameStack(3),)))
    return made


def plain(settings: Any) -> str:
    """All values of settings, with their types."""
    return json.dumps(encode(settings))


@pytest.mark.parametrize("saved", parts(), ids=lambda saved: type(saved.agent).__name__)
def test_settings_of_distrls_own_agents_come_back_without_pickle(saved: Parts, tmp_path: Path):
    agent_writer(saved, pytest.fail)(tmp_path)
    (path,) = tmp_path.iterdir()
    assert path.name == SETTINGS
    settings = read_settings(path, trust=False)
    assert type(settings["agent"]) is type(saved.agent)
    assert plain(settings["agent"]) == plain(saved.agent)
    assert plain(settings["transforms"]) == plain(tuple(saved.transforms))
    assert plain(settings["env_spec"]) == plain(saved.env_spec)
    assert type(settings["env_spec"]) is EnvironmentSpec


@pytest.mark.parametrize("protocol", [4, 5])
@pytest.mark.parametrize("saved", parts(), ids=lambda saved: type(saved.agent).__name__)
def test_pickles_of_older_versions_need_no_trust(saved: Parts, protocol: int, tmp_path: Path):
    settings = {"agent": saved.agent, "transforms": saved.transforms, "env_spec": saved.env_spec}
    path = tmp_path / PICKLE
    path.write_bytes(cloudpickle.dumps(settings, protocol))
    assert plain(read_settings(path, trust=False)) == plain(settings)


class Reduced:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call


def in_a_field(value: Any) -> NetworkConfig:
    network = NetworkConfig()
    object.__setattr__(network, "torso", value)
    return network


@pytest.mark.parametrize(
    "make",
    [
        lambda path: Reduced(os.system, f"touch {path}"),
        lambda path: Reduced(eval, f"open({str(path)!r}, 'w')"),
        lambda path: {"agent": in_a_field(Reduced(os.mkdir, str(path)))},
        lambda path: specs.Array((), np.float32, Reduced(os.mkdir, str(path))),
        lambda path: EpsilonSchedule,
        lambda path: os.mkdir,
        lambda path: Reduced(getattr, os, "mkdir"),
        lambda path: Reduced(np.load, str(path)),
        lambda path: [Path(path)],
        lambda path: np.array([Reduced(os.mkdir, str(path))], object),
        lambda path: cloudpickle.loads,
        lambda path: lambda: path,
    ],
)
def test_a_pickle_with_code_is_refused_and_nothing_of_it_runs(make: Any, tmp_path: Path):
    marker, path = tmp_path / "marker", tmp_path / PICKLE
    path.write_bytes(cloudpickle.dumps(make(marker)))
    with pytest.raises(ConfigError) as refused:
        read_settings(path, trust=False)
    assert not marker.exists()
    said = str(refused.value)
    assert "trust=True" in said or "is damaged" in said


def test_a_pickle_runs_its_code_when_it_is_trusted(tmp_path: Path):
    marker, path = tmp_path / "marker", tmp_path / PICKLE
    path.write_bytes(pickle.dumps(Reduced(os.mkdir, str(marker))))
    with pytest.raises(ConfigError, match="damaged: it has no agent, env_spec, transforms"):
        read_settings(path, trust=True)
    assert marker.exists()


def test_no_state_of_a_pickle_changes_a_class(tmp_path: Path):
    before = dict(vars(EpsilonSchedule))
    path = tmp_path / PICKLE
    # BUILD on the class itself, with a state of slots.
    name = b"cdistrl.agents.exploration\nEpsilonSchedule\n"
    path.write_bytes(name + b"(N(V__call__\n" + name + b"dtb.")
    with pytest.raises(ConfigError):
        read_settings(path, trust=False)
    assert dict(vars(EpsilonSchedule)) == before


def array(dtype: str) -> dict[str, Any]:
    return {"array": base64.b64encode(bytes(8)).decode(), "dtype": dtype, "shape": [1]}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({"class": "os.system", "fields": {}}, ForeignError),
        ({"class": "distrl.agents.dqn.DQN", "fields": {}}, ForeignError),
        ({"class": "distrl.agents.dqn.os.system", "fields": {}}, ForeignError),
        ({"class": "distrl.agents.dqn.NetworkConfig", "fields": {}}, ForeignError),
        ({"class": "distrl.agents...os.system", "fields": {}}, ForeignError),
        ({"class": "distrl.launch.main.main", "fields": {}}, ForeignError),
        ({"class": "distrl.agents.networks.NetworkConfig", "fields": {"x": 1}}, ConfigError),
        ({"spec": "StringArray", "fields": {}}, LookupError),
        ({"else": 1}, ValueError),
        (array("O"), ValueError),
        (array("|V8"), None),
        ({"dtype": "O"}, ValueError),
    ],
)
def test_json_names_nothing_but_settings(data: Any, error: Any):
    if error is None:
        assert decode(data).nbytes == 8
        return
    with pytest.raises(error):
        decode(data)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": 1}', "[" * 100_000, '{"format": 9, "settings": {}}']
)
def test_a_damaged_file_is_one_line(text: str, tmp_path: Path):
    path = tmp_path / SETTINGS
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"agent.json (is damaged|has format 9)"):
        read_settings(path, trust=False)


@pytest.mark.parametrize("data", [b"", b"\x80", b"(", b"I1\n.", b"Pabc\n.", b"cos\nsystem\n)R."])
def test_a_damaged_pickle_is_one_line(data: bytes, tmp_path: Path):
    path = tmp_path / PICKLE
    path.write_bytes(data)
    with pytest.raises(ConfigError):
        read_settings(path, trust=False)


@dataclasses.dataclass(frozen=True)
class Own(ObservationNormalizer):
    """A transform of the user's own."""


@pytest.mark.parametrize(
    "saved",
    [
        Parts(NetworkConfig(), (Own(),)),
        Parts(NetworkConfig(), env_spec=SPEC._replace(observation=Pair(*SPEC.action))),
    ],
)
def test_what_is_the_users_own_is_a_pickle(saved: Parts, tmp_path: Path):
    agent_writer(saved, pytest.fail)(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [PICKLE]
    with pytest.raises(ConfigError, match="trust=True"):
        read_settings(tmp_path / PICKLE, trust=False)
    assert type(read_settings(tmp_path / PICKLE, trust=True)["agent"]) is type(saved.agent)


@pytest.mark.parametrize(
    ("python", "message"), [("3.99.1", "only Python 3.99.1 can load"), (None, "is damaged")]
)
def test_code_of_another_python_is_named(tmp_path: Path, python: str | None, message: str):
    path = tmp_path / "checkpoints" / "000001" / PICKLE
    path.parent.mkdir(parents=True)
    path.write_bytes(cloudpickle.dumps({}))  # of the right form, and without the settings
    versions = {"python": python or platform.python_version()}
    (tmp_path / "config.json").write_text(json.dumps({"versions": versions}))
    path.write_bytes(b"\x80\x04cnumpy\nint64\n)R(K\x01K\x02t.")  # raises a TypeError or the like
    with pytest.raises(ConfigError, match=message):
        read_settings(path, trust=True)


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("noted", ["manifest", "config"])
def test_nothing_of_a_pickle_with_bytecode_of_another_python_runs(
    tmp_path: Path, noted: str, trust: bool
):
    marker, path = tmp_path / "marker", tmp_path / "checkpoints" / "000001" / PICKLE
    path.parent.mkdir(parents=True)
    path.write_bytes(cloudpickle.dumps([Reduced(os.mkdir, str(marker)), lambda x: x + 1]))
    by_manifest = noted == "manifest"
    last = platform.python_version() if by_manifest else "3.99.1"  # it was resumed since
    (tmp_path / "config.json").write_text(json.dumps({"versions": {"python": last}}))
    programs = {"programs": {"python": "3.99.1"}} if by_manifest else {}
    checkpoint = Checkpoint(path.parent, {"files": {PICKLE: {}}, **programs})
    with pytest.raises(ConfigError, match=r"agent.pkl has code that only Python 3.99.1 can load"):
        settings_of(checkpoint, trust)
    assert not marker.exists()


def test_a_pickle_without_bytecode_is_loaded_in_any_python(tmp_path: Path):
    saved = Parts(NetworkConfig())
    settings = {"agent": saved.agent, "transforms": (), "env_spec": SPEC._replace(reward_delay=1)}
    path = tmp_path / PICKLE
    path.write_bytes(cloudpickle.dumps(settings))
    for trust in (False, True):
        assert plain(read_settings(path, trust, "3.99.1")) == plain(settings)


def test_modules_that_are_taken_by_value_already_stay_so():
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        saved_agent.pickled({})
        assert __name__ in cloudpickle.list_registry_pickle_by_value()
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    saved_agent.pickled({})
    assert __name__ not in cloudpickle.list_registry_pickle_by_value()


def test_what_an_installer_has_put_into_a_folder_of_the_path_is_not_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    records = {
        "target_pkg-1.0.dist-info": "target_pkg/__init__.py,,\ntarget_pkg/sub/leaf.py,,\n",
        "other-2.dist-info": "target_alone.py,sha256=x,9\n../../bin/other,,\n",
        "target_editable.egg-info": None,  # as beside the code of an editable project
    }
    for name, record in records.items():
        (tmp_path / name).mkdir()
        if record is not None:
            (tmp_path / name / "RECORD").write_text(record)
    (tmp_path / "target_editable.egg-info" / "top_level.txt").write_text("target_editable\n")
    for file in ("target_pkg", "target_pkg/sub", "target_editable"):
        (tmp_path / file).mkdir()
        (tmp_path / file / "__init__.py").touch()
    for file in ("target_pkg/sub/leaf.py", "target_alone.py", "target_users.py"):
        (tmp_path / file).touch()
    monkeypatch.syspath_prepend(tmp_path)
    names = (
        "target_pkg", "target_pkg.sub", "target_pkg.sub.leaf", "target_alone", "target_users",
        "target_editable",
    )  # fmt: skip
    installed = {name for name in names if saved_agent.is_installed(name)}
    assert installed == set(names) - {"target_users", "target_editable"}
    assert not sys.modules.keys() & set(names)
    try:
        modules = [importlib.import_module(name) for name in names]
        users = {module.__name__ for module in modules if saved_agent.is_users(module)}
    finally:
        for name in names:
            sys.modules.pop(name, None)
    assert users == {"target_users", "target_editable"}
