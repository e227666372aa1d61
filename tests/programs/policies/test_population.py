"""Populations in programs: copies are exact, whether learners share a process or not."""

import json
import re
import sys
import threading

import jax
import numpy as np
import pytest

from distrl import envs
from distrl.agents.a2c import A2CConfig
from distrl.agents.networks import NetworkConfig
from distrl.agents.tunable import Tunable, hyperparameters
from distrl.checkpointing.params_file import load_params
from distrl.checkpointing.store import Checkpoints
from distrl.config import ActorsConfig
from distrl.experiment import Experiment
from distrl.goal import Goal
from distrl.population import RECORD, Population
from distrl.programs.running.population import LocalMember, MemberService
from distrl.programs.single_process import single_process
from distrl.programs.single_process_parts import SingleProcess
from tests.support.commands import EXPERIMENTS, finish

AGENT = Tunable(A2CConfig(NetworkConfig(hidden_sizes=(8,))), {"learning_rate": (1e-4, 1e-2)})


def experiment(members=2, **settings):
    return Experiment(
        envs.Copies(envs.make("CartPole-v1"), members),
        policies={f"m{k}": AGENT for k in range(members)},
        policy_of={str(k): f"m{k}" for k in range(members)},
        actors=ActorsConfig(1, 4),
        population=Population(interval=10, episodes=3, **settings),
        goal=Goal(mean_return=None, max_env_steps=12_000),
    )


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_a_copy_is_exact_and_learns_on_with_its_own_counts():
    with SingleProcess(experiment(), printer=lambda line: None) as parts:
        for _ in range(6):
            parts.run_once()
        one, other = (part.learner for part in parts.tasks.values())
        before = other.state()
        forgotten = []
        monitor = type("Monitor", (), {"forget_episodes": lambda self: forgotten.append(1)})()
        state, values = LocalMember(one, monitor).copy()
        assert values == hyperparameters(one.state().params)
        LocalMember(other, monitor).adopt(state, {"learning_rate": 0.007})
        after = other.state()
        same(after.params["agent"], one.state().params["agent"])
        same(after.agent, one.state().agent)
        assert hyperparameters(after.params) == {"learning_rate": pytest.approx(0.007)}
        assert after[3:9] == before[3:9] and after.version == before.version  # all counts
        assert (before.adopted, after.adopted) == (-1, after.version)
        assert forgotten == [1]
        compiled = other._update._cache_size()
        version, learned = other.version, after.params
        while other.version == version:
            parts.run_once()
        assert other._update._cache_size() == compiled
        assert other.state().adopted == version
        assert hyperparameters(other.state().params) == hyperparameters(learned)
        # As bytes, between nodes: what comes is adopted between two updates.
        service, from_one = MemberService(other), MemberService(one)
        data, values = from_one.copy()
        now = other.state()
        service.adopt(data, {"learning_rate": 0.001})
        assert other.state() is now
        assert service.skipped_in_row() == 0
        service.between_updates()
        same(other.state().params["agent"], one.state().params["agent"])
        same(other.state().agent, one.state().agent)
        assert hyperparameters(other.state().params) == {"learning_rate": np.float32(0.001)}
        service.between_updates()  # nothing has come since


def test_a_member_that_has_yet_to_adopt_is_copied_as_what_it_will_be():
    with SingleProcess(experiment(3), printer=lambda line: None) as parts:
        for _ in range(9):
            parts.run_once()
        best, copier, third = (part.learner for part in parts.tasks.values())
        services = [MemberService(learner) for learner in (best, copier, third)]
        data, _ = services[0].copy()
        services[1].adopt(data, {"learning_rate": 0.001})
        again, values = services[1].copy()
        assert again == data and values == {"learning_rate": 0.001}
        services[2].adopt(again, {"learning_rate": 0.002})
        for service in services:
            service.between_updates()
        for learner, rate in ((copier, 0.001), (third, 0.002)):
            same(learner.state().params["agent"], best.state().params["agent"])
            same(learner.state().agent, best.state().agent)
            assert hyperparameters(learner.state().params) == {"learning_rate": np.float32(rate)}
        assert services[1].copy()[1] == {"learning_rate": np.float32(0.001)}  # of its own now


@pytest.mark.full
def test_a_run_records_its_copies_and_saves_its_hyperparameters(tmp_path):
    lines = []
    ended = single_process(
        experiment(), stop=threading.Event(), run_dir=tmp_path, printer=lines.append
    )
    assert ended is not None and ended[1]
    copies = [line for line in lines if line.startswith("population: ")]
    records = [json.loads(line) for line in (tmp_path / RECORD).read_text().splitlines()]
    assert len(copies) == len(records) > 2
    last = {}
    for record in records:
        assert record["learner_step"] % 10 == 0 and record["its_return"] > record["return"]
        assert record["from"] == pytest.approx(last.get(record["copies"], record["from"]))
        last[record["member"]] = record["to"]
    like = jax.eval_shape(experiment().tasks["m0"].make_agent().initial_params, jax.random.key(0))
    for name, values in last.items():
        checkpoint = Checkpoints(tmp_path / "tasks" / name).latest()
        _, params = load_params(checkpoint.path / "params.npz", like)
        assert hyperparameters(params) == pytest.approx(values)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("topology", ["heavy_env", "light_env"])
def test_learners_of_their_own_copy_each_other(tmp_path, topology):
    command = [
        sys.executable, "-m", "distrl", "train", f"--topology={topology}",
        f"--experiment={EXPERIMENTS / 'population.py'}", f"--run_dir={tmp_path / 'run'}",
    ]  # fmt: skip
    done = finish(command, 240)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert re.search(r"population: m\d \(return .*\) copies m\d", done.stdout)
    records = [json.loads(line) for line in (tmp_path / "run" / RECORD).read_text().splitlines()]
    assert len(records) >= 2
