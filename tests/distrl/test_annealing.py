"""Learning rates that fall: over a number of updates, and over a run's environment steps."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distrl import presets
from distrl.agents.networks import NetworkConfig
from distrl.agents.optimizers import annealed as annealed_rate
from distrl.agents.structs import params_struct
from distrl.agents.tunable import Tunable
from distrl.annealing import annealed_over_budget
from distrl.checkpointing.params_file import save_nest, save_params
from distrl.checkpointing.resume_point import check_agent
from distrl.checkpointing.store import LEARNER, PARAMS
from distrl.errors import ConfigError
from distrl.goal import Goal
from distrl.programs.single_process_parts import SingleProcess
from distrl.random_keys import root
from distrl.specs import zeros

CONTINUOUS = ("ddpg", "sac", "td3")


def annealed(env, agent, steps, **changes):
    """Returns the `anneal_updates` of a preset that has so many environment steps."""
    made = presets.experiment(env, agent)
    config = dataclasses.replace(made.agent, anneal_over_budget=True)
    learner = dataclasses.replace(made.learner, **changes)
    goal = Goal(max_env_steps=steps)
    return annealed_over_budget(config, goal, made.replay, learner).anneal_updates


def test_updates_of_a_budget_follow_from_the_replay():
    # PPO: batches of 8 unrolls of 256 steps, with 10 epochs of 32 minibatches each.
    assert annealed("HalfCheetah-v4", "ppo", 1_000_000) == -(-1_000_000 * 320 // (8 * 256))
    assert (
        annealed("Pong-v5", "dqn", 1_000_000) == (1_000_000 - 50_000) // 4
    )  # behind its first 50,000
    assert annealed("Pendulum-v1", "sac", 20_000) == 20_000 - 1_000
    start = 128 * 24  # steps of the unrolls that the table must hold
    assert annealed("CartPole-v1", "r2d2", start + 4_800) == 4_800 * 8 // (24 * 16)
    start = 128 * 16
    assert annealed("CartPole-v1", "dqn", start + 1_000, every_steps=10) == 100
    assert annealed("CartPole-v1", "dqn", start) == 1  # it may make none


def test_the_unrolls_before_the_first_update_are_those_of_all_agents():
    made = presets.experiment("CartPole-v1", "dqn")
    config = dataclasses.replace(made.agent, anneal_over_budget=True)
    goal, parts = Goal(max_env_steps=128 * 16 // 2 + 800), (made.replay, made.learner)
    assert annealed_over_budget(config, goal, *parts, 2).anneal_updates == 2 * 800 * 8 // (16 * 8)
    overlapping = dataclasses.replace(made.replay, period=8)
    goal = Goal(max_env_steps=128 * 8 + 800)
    assert annealed_over_budget(config, goal, overlapping, made.learner).anneal_updates == 800 // 8


def test_rates_of_a_sampled_table_are_at_0_when_the_budget_is_spent():
    made = presets.experiment("CartPole-v1", "dqn")
    agent = dataclasses.replace(made.agent, network=NetworkConfig(hidden_sizes=(4,)))
    replay = dataclasses.replace(made.replay, min_size_to_sample=64)
    goal = Goal(mean_return=None, max_env_steps=2_048)
    made = dataclasses.replace(made, agent=agent, replay=replay, goal=goal)
    with SingleProcess(made) as program:
        while program.actor.acted < goal.max_env_steps:
            program.run_once()
        updates = annealed_over_budget(made.agent, goal, replay, made.learner).anneal_updates
        assert updates == (2_048 // 16 - 64) * 8 // 8
        ahead = replay.error_buffer // made.learner.batch_size
        (task,) = program.tasks.values()
        assert updates <= task.learner.version <= updates + 2 * ahead


def test_without_a_budget_the_rate_is_constant():
    made = presets.experiment("HalfCheetah-v4", "ppo")
    assert made.agent.anneal_over_budget
    assert annealed_over_budget(made.agent, Goal(), made.replay, made.learner) == made.agent
    free = dataclasses.replace(presets.experiment("CartPole-v1", "dqn").replay)
    free = dataclasses.replace(free, samples_per_insert=None, error_buffer=None)
    goal = Goal(max_env_steps=100)
    assert annealed_over_budget(made.agent, goal, free, made.learner) == made.agent


def test_a_task_makes_the_agent_of_its_budget():
    made = presets.experiment("CartPole-v1", "dqn")
    agent = dataclasses.replace(made.agent, anneal_over_budget=True)
    made = dataclasses.replace(made, agent=agent, goal=Goal(max_env_steps=128 * 16 + 160))
    assert made.make_agent().agent.config.anneal_updates == 160 * 8 // (16 * 8)


@pytest.mark.parametrize("name", ["dqn", "sac", "td3"])
def test_a_run_resumes_when_its_budget_is_set_or_removed(tmp_path, name):
    made = presets.experiment("Pendulum-v1" if name in CONTINUOUS else "CartPole-v1", name)
    config = dataclasses.replace(made.agent, anneal_over_budget=True)
    agents = []
    for steps in (None, 100_000):
        goal = Goal(mean_return=None, max_env_steps=steps)
        agents.append(dataclasses.replace(made, agent=config, goal=goal).make_agent())
    for before, after in (agents, agents[::-1]):
        params = params_struct(before)
        state = jax.eval_shape(before.initial_learner_state, params)
        save_params(tmp_path / PARAMS, 1, zeros(params))
        save_nest(tmp_path / LEARNER, zeros(state))
        check_agent(after, tmp_path)


@pytest.mark.parametrize("name", sorted(presets.AGENTS))
def test_every_agents_rates_fall_to_zero(name):
    """Of equal gradients the first step is a whole one, and the last makes no change."""
    env = "Pendulum-v1" if name in CONTINUOUS else "CartPole-v1"
    made = presets.experiment(env, name)
    agent = dataclasses.replace(made.agent, anneal_updates=4).make(made.environment.spec())
    params = agent.initial_params(root(0))
    state = agent.initial_learner_state(params)
    grads = jax.tree.map(lambda x: jnp.full_like(x, 1e-3), params)

    @jax.jit
    def update(params, state):
        params, opt_state, _ = agent.apply_gradients(params, state, grads)
        return params, agent.update_learner_state(params, opt_state, state)

    sizes = []
    for _ in range(8):
        after, state = update(params, state)
        changes = [
            float(np.abs(np.asarray(new) - np.asarray(old)).max())
            for new, old in zip(jax.tree.leaves(after), jax.tree.leaves(params), strict=True)
            if np.ndim(new)  # not epsilon, which has a schedule of its own
        ]
        sizes.append(max(changes))
        params = after
    assert sizes[4:] == [0.0] * 4
    late = name == "td3"  # its policy's first update comes with the second of the critics
    bounds = [1 - max(0, n - late) / 4 for n in range(4)]
    largest = max(sizes)
    assert all(0 < size <= largest * bound * 1.01 for size, bound in zip(sizes, bounds))


def test_each_agent_of_an_environment_makes_updates():
    made = presets.experiment("CartPole-v1", "impala")
    config = dataclasses.replace(made.agent, anneal_over_budget=True)
    goal, parts = Goal(max_env_steps=9_000), (made.replay, made.learner)
    one, three = (annealed_over_budget(config, goal, *parts, n).anneal_updates for n in (1, 3))
    steps = made.replay.unroll_length * made.learner.batch_size
    assert (one, three) == (-(-9_000 // steps), -(-27_000 // steps))


def test_a_tunable_agents_rate_falls_too():
    made = presets.experiment("CartPole-v1", "a2c")
    config = dataclasses.replace(made.agent, anneal_over_budget=True)
    tunable = Tunable(config, {"entropy_cost": (0.001, 0.1)})
    parts = Goal(max_env_steps=9_000), made.replay, made.learner
    annealed = annealed_over_budget(tunable, *parts)
    assert annealed.agent == annealed_over_budget(config, *parts) != config
    assert annealed.ranges == tunable.ranges


def test_whole_episodes_are_refused():
    made = presets.experiment("CartPole-v1", "reinforce")
    config = dataclasses.replace(made.agent, anneal_over_budget=True)
    with pytest.raises(ConfigError, match=r"set agent\.anneal_updates"):
        annealed_over_budget(config, Goal(max_env_steps=100), made.replay, made.learner)


def test_a_rate_never_falls_below_zero():
    schedule = annealed_rate(2e-3, 39)
    assert schedule(0) == np.float32(2e-3)
    assert min(float(schedule(count)) for count in range(60)) == 0.0
