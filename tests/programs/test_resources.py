"""GPUs reach the nodes that declare them, and nobody else."""

import dataclasses

import pytest

from distrl import presets
from distrl.envs.multi_agent.environment import MultiAgentEnvironment
from distrl.errors import ConfigError
from distrl.experiment import (
    ActorsConfig,
    Experiment,
    InferenceConfig,
    LearnedPolicy,
    LearnerConfig,
)
from distrl.launch.local import child
from distrl.programs import resources
from distrl.programs.groups import num_gpus_by_node
from distrl.programs.resources import (
    describe_gpus,
    node_environments,
    process_environment,
    unused_gpus,
)
from distrl.replay.config import ReplayConfig
from distrl.testing import CheckingConfig, CountingAgents

SHARE = "inference.share_gpus=True lets the services use the learner's"
EXPERIMENT = presets.experiment("CartPole-v1")


@pytest.fixture(autouse=True)
def no_settings_of_ours(monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        monkeypatch.delenv(name, raising=False)


def declare(learner=0, inference=0, num_inferencers=1, share=False):
    return dataclasses.replace(
        EXPERIMENT,
        actors=ActorsConfig(num_actors=max(2, num_inferencers), num_envs=8),
        learner=LearnerConfig(num_gpus=learner),
        inference=InferenceConfig(num_inferencers, num_gpus=inference, share_gpus=share),
    )


def two_policies(first, second):
    replay = ReplayConfig(max_size=1000)
    policies = {
        "a": LearnedPolicy(CheckingConfig(), replay, first),
        "b": LearnedPolicy(CheckingConfig(), replay, second),
    }
    policy_of = {"a": "a", "b": "b", "c": "b"}
    return Experiment(MultiAgentEnvironment(CountingAgents), policies=policies, policy_of=policy_of)


def gpus(environments):
    """What each group and node sees."""
    return {
        name: env["CUDA_VISIBLE_DEVICES"]
        for name, env in environments.items()
        if env["CUDA_VISIBLE_DEVICES"]
    }


def test_they_are_counted_from_the_users_mask(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    found = node_environments(declare(learner=2), "heavy_env")
    assert gpus(found) == {"learner/0": "2,5"}
    assert found["learner/0"]["JAX_PLATFORMS"] == "cuda,cpu"  # never the CPU instead of a GPU
    for group in ("replay", "monitor", "inferencer", "actor", "evaluator"):
        assert found[group]["CUDA_VISIBLE_DEVICES"] == ""
        assert found[group]["JAX_PLATFORMS"] == "cpu"
    assert describe_gpus(found) == "GPUs: learner/0 2,5; no other node sees a GPU"


def test_each_inferencer_has_its_own(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7, 2,GPU-ab12,0")
    found = node_environments(declare(1, 2, 2), "light_env")
    assert gpus(found) == {"learner/0": "7", "inferencer/0": "2", "inferencer/1": "GPU-ab12"}
    assert not any("XLA_PYTHON_CLIENT_MEM_FRACTION" in env for env in found.values())


def test_inferencers_share_what_there_is(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,1")
    found = node_environments(declare(0, 2, 3), "light_env")
    assert gpus(found) == {"inferencer/0": "4", "inferencer/1": "1", "inferencer/2": "4"}
    assert found["inferencer/0"]["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.38"
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.1")  # the user knows better
    found = node_environments(declare(0, 2, 3), "light_env")
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in found["inferencer/0"]


def test_inferencers_share_the_learners_if_told_to(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    found = node_environments(declare(1, 1, 2, share=True), "light_env")
    assert gpus(found) == {"learner/0": "4", "inferencer/0": "4", "inferencer/1": "4"}
    for name in ("learner/0", "inferencer/0", "inferencer/1"):
        assert found[name]["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.25"
    assert node_environments(declare(1, 1, 2, share=True), "heavy_env")["learner/0"] == {
        "CUDA_VISIBLE_DEVICES": "4",
        "JAX_PLATFORMS": "cuda,cpu",
    }
    with pytest.raises(ConfigError, match=r"shows 1 \(4\); inference.share_gpus=True lets the ser"):
        node_environments(declare(1, 1), "light_env")


def test_sharing_needs_something_to_share():
    with pytest.raises(
        ConfigError, match=r"share_gpus=True with inference.num_gpus=0: .* take inf"
    ):
        declare(1, 0, share=True)


def test_each_learner_has_its_own(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    made = two_policies(LearnerConfig(num_gpus=1), LearnerConfig(num_gpus=2, batch_size=64))
    inference = InferenceConfig(num_gpus=1)
    each = dataclasses.replace(made, learners="each", inference=inference)
    assert gpus(node_environments(each, "light_env")) == {
        "learner/0": "0",
        "learner/1": "1,2",
        "inferencer/0": "3",
        "inferencer/1": "3",
    }
    assert num_gpus_by_node(each, light=True) == {
        "learner/0": 1, "learner/1": 2, "inferencer/0": 1, "inferencer/1": 1
    }  # fmt: skip
    one = dataclasses.replace(made, learners="one")
    assert gpus(node_environments(one, "heavy_env")) == {"learner/0": "0,1,2"}
    assert gpus(node_environments(each, "light_env", has_gpus=False)) == {}


def test_where_each_actor_infers_for_itself_no_service_has_one(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert gpus(node_environments(declare(1, 1), "heavy_env")) == {"learner/0": "3"}


@pytest.mark.parametrize(
    ("mask", "shown"),
    [("2,5", f"2 (2,5); {SHARE}"), ("", "0 (none)"), ("-1", "0 (none)"), ("1,-1,0", "1 (1)")],
)
def test_more_than_there_are_is_refused(monkeypatch, mask, shown):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    with pytest.raises(ConfigError) as caught:
        node_environments(declare(2, 1), "light_env")
    assert str(caught.value) == (
        f"GPUs declared: learner.num_gpus=2, inference.num_gpus=1; this machine shows {shown}"
    )


def test_without_a_mask_cuda_counts_what_it_finds(monkeypatch):
    files = ["/dev/nvidia3", "/dev/nvidia5"]  # of a container that was given two of eight
    monkeypatch.setattr(resources.glob, "glob", lambda pattern: files)
    assert gpus(node_environments(declare(2), "heavy_env")) == {"learner/0": "0,1"}


def test_gpus_that_jax_may_not_use_are_refused(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    with pytest.raises(ConfigError, match=r"learner.num_gpus=1; JAX_PLATFORMS=cpu hides them"):
        node_environments(declare(1), "heavy_env")
    assert gpus(node_environments(declare(0), "heavy_env")) == {}


def test_an_inferencer_uses_one():
    with pytest.raises(ConfigError, match=r"num_gpus=3 is more than inference.num_inferencers=2"):
        declare(0, 3, 2)


def test_one_process_sees_those_of_its_learner(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    for experiment in (None, declare(0, 1)):
        assert process_environment(experiment) == {"JAX_PLATFORMS": "cpu"}  # not for a simulator
    found = process_environment(declare(1))
    assert found == {"CUDA_VISIBLE_DEVICES": "2", "JAX_PLATFORMS": "cuda,cpu"}
    with pytest.raises(ConfigError, match=r"learner.num_gpus=4; this machine shows 2 \(2,5\)$"):
        process_environment(declare(4))
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")  # as the user says
    assert process_environment(None) == process_environment(declare(0)) == {}
    with pytest.raises(ConfigError, match="JAX_PLATFORMS=tpu hides them"):
        process_environment(declare(1))


def test_gpus_that_nothing_uses_are_named(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert unused_gpus(declare(), light=False) == ""  # JAX's build for the CPU
    monkeypatch.setattr(resources, "_PLUGINS", ("json",))
    unused = unused_gpus(declare(0, 1), light=False)
    assert unused == (
        "no part uses this machine's GPU; --config.learner.num_gpus=1 gives it to the learner"
    )
    assert unused_gpus(declare(0, 1), light=True) == unused_gpus(declare(1), light=False) == ""
    several = unused_gpus(two_policies(LearnerConfig(), LearnerConfig()), light=False)
    assert "; --config.policies.a.learner.num_gpus=1 gives it to the learner" in several
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert unused_gpus(declare(), light=False) == ""


@pytest.mark.parametrize("declared", [{}, {"CUDA_VISIBLE_DEVICES": ""}, {"A": "b"}])
def test_a_process_that_is_given_none_sees_none(declared):
    env = child.environment(declared)
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert env["JAX_PLATFORMS"] == "cpu"


def test_a_process_that_is_given_one_sees_it():
    declared = {"CUDA_VISIBLE_DEVICES": "5", "JAX_PLATFORMS": "cuda,cpu"}
    assert child.environment(declared) == declared
