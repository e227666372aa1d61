"""`--topology=auto`: what the user, the run folder and the measurement say."""

import copy
import json

import pytest
from absl import flags

from distrl.launch.cli import auto, config_flags
from distrl.launch.cli.load_experiment import apply_settings, load_experiment
from distrl.launch.commands import train
from distrl.programs.auto import Candidates
from distrl.programs.topology_rates import Cost, CostLine, Costs, DeviceCosts

WAITING = Costs(
    CostLine(Cost(0.0, 0.0), Cost(0.01, 0.0)),
    None,
    {"cpu": DeviceCosts(CostLine(Cost(1e-4, 1e-4), Cost(0.0, 0.0)), Cost(1e-3, 1e-3))},
)


@pytest.fixture
def resolve(monkeypatch):
    """Returns experiment, topology and entry of config.json for a command, and its lines."""
    monkeypatch.setattr(auto, "usable_cores", lambda: 2)

    def call(*words, costs=WAITING, is_preset=True):
        values = copy.deepcopy(flags.FLAGS)
        for name in values:
            values[name].unparse()
        arguments = ["distrl train", *words]
        values(arguments, known_only=True)
        experiment = load_experiment(values)
        config_flags.define_flags(experiment, values=values)
        values(arguments)
        experiment = apply_settings(experiment, values)
        lines = []

        def measured(of, cores):
            assert costs is not None, "nothing is to be measured"
            return costs

        found = auto.resolve(experiment, values.topology, values, is_preset, lines.append, measured)
        return found, lines

    return call


def test_it_is_the_default_and_says_why(resolve):
    (experiment, topology, entry), (line,) = resolve()
    assert topology == "heavy_env"
    assert (experiment.actors.num_actors, experiment.actors.num_envs) == (8, 8)
    assert line.startswith("distrl: auto: heavy_env with 8 actors: about ")
    assert "\n" not in line
    assert entry["auto"]["settings"] == {"actors.num_actors": 8, "actors.num_envs": 8}


@pytest.mark.parametrize(
    "words", [["--config.actors.num_actors=2"], ["--config.actors.num_envs=32"]]
)
def test_what_the_user_sets_stays(resolve, words):
    (experiment, _, entry), _ = resolve(*words)
    assert (experiment.actors.num_actors, experiment.actors.num_envs) == (2, 32)
    assert entry["auto"]["settings"] == {}


def test_the_actors_of_an_experiment_of_ones_own_stay(resolve):
    (experiment, topology, _), _ = resolve(is_preset=False)
    assert (topology, experiment.actors.num_actors) == ("heavy_env", 2)


SERVED = WAITING._replace(
    step=CostLine(Cost(0.0, 0.0), Cost(1e-6, 0.0)),
    devices={
        "cpu": DeviceCosts(CostLine(Cost(1.0, 1.0), Cost(0.0, 0.0)), Cost(1.0, 1.0)),
        "gpu": DeviceCosts(CostLine(Cost(1e-4, 0.0), Cost(0.0, 0.0)), Cost(1e-4, 0.0)),
    },
)  # by a GPU


@pytest.mark.parametrize(
    ("words", "gpus", "devices"),
    [
        ([], (1, 1, True), "an inference takes 100 µs on the GPU, an update 100 µs on the GPU"),
        (
            ["--config.learner.num_gpus=0"],
            (0, 1, False),
            "an inference takes 100 µs on the GPU, an update 1e+03 ms",
        ),
        (
            ["--config.inference.num_gpus=0"],
            (1, 0, False),
            "an inference takes 1e+03 ms, an update 100 µs on the GPU",
        ),
        (
            ["--config.inference.num_gpus=0", "--config.learner.num_gpus=0"],
            (0, 0, False),
            "an inference takes 1e+03 ms, an update 1e+03 ms",
        ),
    ],
)
def test_gpus_that_the_user_does_not_want_are_not_given(resolve, monkeypatch, words, gpus, devices):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(auto, "candidates", lambda *_: Candidates(("light_env",)))
    (experiment, _, _), (line,) = resolve(*words, costs=SERVED)
    inference = experiment.inference
    assert (experiment.learner.num_gpus, inference.num_gpus, inference.share_gpus) == gpus
    assert line.endswith(devices)


def test_a_resumed_run_leaves_the_gpu_of_its_services(resolve, tmp_path):
    settings = {"learner.num_gpus": 1, "inference.num_gpus": 1, "inference.share_gpus": True}
    config = {"topology": "light_env", "experiment": {}, "auto": {"settings": settings}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = [f"--run_dir={tmp_path}", "--config.inference.num_gpus=0"]
    (experiment, _, _), _ = resolve(*words, costs=None)
    inference = experiment.inference
    assert (experiment.learner.num_gpus, inference.num_gpus, inference.share_gpus) == (1, 0, False)


def test_a_resumed_run_keeps_its_topology_when_the_environment_has_left_the_folder(resolve, moved):
    (moved / "home/run").mkdir()
    config = {"topology": "light_env", "experiment": {}}
    (moved / "home/run/config.json").write_text(json.dumps(config))
    (_, topology, _), lines = resolve("--run_dir=run", costs=None)
    assert (topology, lines) == ("light_env", [])


@pytest.mark.parametrize(
    "words, topology, reason",
    [
        (["--hosts=h1,h2"], "multi_machine", "multi_machine: --hosts"),
        (["--debug=all"], "single_process", "single_process: --debug=all"),
        (
            ["--config.inference.num_inferencers=2"],
            "light_env",
            "light_env: inference.num_inferencers=2",
        ),
        (
            ["--coordinator_address=h1:1", "--num_processes=2", "--process_id=0"],
            "single_process",
            "single_process: --coordinator_address",
        ),
    ],
)
def test_what_is_clear_is_not_measured(resolve, words, topology, reason):
    (_, chosen, _), (line,) = resolve(*words, costs=None)
    assert (chosen, line) == (topology, f"distrl: auto: {reason}")


def test_a_gpu_is_named_where_it_is_not_measured(resolve, monkeypatch):
    unused = "no part uses this machine's GPU"
    monkeypatch.setattr(auto, "unused_gpus", lambda experiment, light: unused)
    assert resolve(costs="not measured: broken")[1][1:] == [f"distrl: {unused}"]
    assert resolve("--debug=all", costs=None)[1][1:] == [f"distrl: {unused}"]
    assert resolve()[1][1:] == resolve("--hosts=h1,h2", costs=None)[1][1:] == []


def test_one_core_is_clear(resolve, monkeypatch):
    monkeypatch.setattr(auto, "usable_cores", lambda: 1)
    assert resolve(costs=None)[0][1] == "single_process"


def test_a_named_topology_is_taken(resolve):
    (_, topology, entry), lines = resolve("--topology=single_process", costs=None)
    assert (topology, entry, lines) == ("single_process", {}, [])


def test_what_cannot_be_measured_is_said(resolve):
    (_, topology, _), (line,) = resolve(costs="not measured: ValueError: broken")
    assert topology == "single_process"
    assert line == "distrl: auto: single_process: not measured: ValueError: broken"


def test_a_resumed_run_keeps_its_topology(resolve, tmp_path):
    config = {"topology": "light_env", "experiment": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))  # of a time before `auto`
    (experiment, topology, _), lines = resolve(f"--run_dir={tmp_path}", costs=None)
    assert (topology, experiment.actors.num_actors, lines) == ("light_env", 2, [])
    config["auto"] = {
        "reason": "r", "settings": {"actors.num_actors": 4, "actors.num_envs": 16}
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    (experiment, topology, entry), lines = resolve(f"--run_dir={tmp_path}", costs=None)
    assert (experiment.actors.num_actors, experiment.actors.num_envs) == (4, 16)
    assert entry["auto"] == config["auto"]
    (experiment, _, _), _ = resolve(
        f"--run_dir={tmp_path}", "--config.actors.num_envs=8", costs=None
    )
    assert (experiment.actors.num_actors, experiment.actors.num_envs) == (2, 8)


LOCKSTEP = ("--config.lockstep=True",)
WORKERS = ("--config.learner.num_gradient_workers=1",)


@pytest.mark.parametrize(
    ("topology", "words", "message"),
    [
        ("light_env", LOCKSTEP, "lockstep: light_env serves requests in the order of their "),
        ("single_process", WORKERS, "learner.num_gradient_workers=1: they are nodes"),
        ("single_process", ("--debug=actor/0",), "--debug=actor/0: single_process has no nodes; "),
        ("heavy_env", ("--debug=all",), "--debug=all: with --lp_launch_type=local_mp use --debug="),
    ],
)
@pytest.mark.parametrize("stored", [True, False])
def test_the_topology_of_a_resumed_run_is_checked_as_a_named_one_is(
    status_of, tmp_path, monkeypatch, capsys, topology, words, message, stored
):
    monkeypatch.setattr(train, "_open_run", lambda *_: pytest.fail("it is opened"))
    if stored:
        config = {"topology": topology, "experiment": {}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        words = (*words, f"--run_dir={tmp_path}")
    else:
        words = (*words, f"--topology={topology}")
    assert status_of("train", "--env=CartPole-v1", "--substrate=builtin", *words) == 2
    assert capsys.readouterr().err.startswith(f"distrl: {message}")


def test_a_fork_measures_unless_jax_has_started(resolve):
    import jax

    jax.devices()
    reason = auto.measure_in_fork(None, 2)
    assert reason == "not measured: JAX has created its devices in this process"
