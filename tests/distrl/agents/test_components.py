"""Optimisers by component: exact arithmetic of plain gradients, freezing, names, old states."""

import dataclasses

import jax
import numpy as np
import optax
import pytest
from dm_env import specs as dm_specs

from distrl import presets
from distrl.agents.a2c import A2CConfig
from distrl.agents.components import ComponentConfig, component_names, components_of
from distrl.agents.ddpg import DDPGConfig
from distrl.agents.dqn import DQNConfig
from distrl.agents.impala import IMPALA, IMPALAConfig
from distrl.agents.networks import NetworkConfig
from distrl.agents.ppo import PPOConfig
from distrl.agents.r2d2 import R2D2Config
from distrl.agents.reinforce import ReinforceConfig
from distrl.agents.sac import SACConfig
from distrl.agents.td3 import TD3Config
from distrl.errors import ConfigError
from distrl.saved.plain_settings import decode, encode
from distrl.specs import EnvironmentSpec
from tests.support.selection import full

KEY = np.array([0, 1], np.uint32)
DISCRETE = EnvironmentSpec(dm_specs.Array((3,), np.float32), dm_specs.DiscreteArray(4, np.int32))
CONTINUOUS = EnvironmentSpec(
    dm_specs.Array((3,), np.float32), dm_specs.BoundedArray((2,), np.float32, -1.0, 1.0)
)
SMALL = NetworkConfig(hidden_sizes=(4,))
MEMORY = NetworkConfig(hidden_sizes=(4,), core="lstm", core_size=4)
SGD = ComponentConfig(learning_rate=0.5, optimizer="sgd")
FROZEN = ComponentConfig(frozen=True)
AGENTS = {  # settings, spec, and names of the components
    "impala": (IMPALAConfig(SMALL), DISCRETE, {"torso", "policy_head", "value_head"}),
    "a2c": (A2CConfig(MEMORY), CONTINUOUS, {"torso", "core", "policy_head", "value_head"}),
    "ppo": (PPOConfig(SMALL), CONTINUOUS, {"torso", "policy_head", "value_head"}),
    "dqn": (
        DQNConfig(SMALL, dueling=True),
        DISCRETE,
        {"q_head", "value_head", "advantage_stream", "value_stream"},
    ),
    "r2d2": (
        R2D2Config(dataclasses.replace(MEMORY, activation="relu")),
        DISCRETE,
        {"torso", "core", "q_head", "value_head", "advantage_stream", "value_stream"},
    ),
    "reinforce": (
        ReinforceConfig(SMALL),
        DISCRETE,
        {"torso", "policy_head", "value_head"},
    ),
    "sac": (SACConfig((4,)), CONTINUOUS, {"policy", "critics", "temperature"}),
    "td3": (TD3Config((4,), policy_delay=1), CONTINUOUS, {"policy", "critics"}),
    "ddpg": (DDPGConfig((4,)), CONTINUOUS, {"policy", "critics"}),
}


def test_every_algorithm_is_tried():
    assert set(AGENTS) >= set(presets.AGENTS)


def make(config, spec):
    """The agent, its parameters and random gradients of all leaves."""
    agent = config.make(spec)
    params = jax.eval_shape(agent.initial_params, KEY)
    rng = np.random.default_rng(0)
    params, grads = (
        jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), params) for _ in "pg"
    )
    return agent, params, grads


def by_component(agent, params):
    """The leaves of each component."""
    labels = agent.components(params)
    trained = params.get("network", params)
    if jax.tree.structure(trained) != jax.tree.structure(labels):
        trained = {name: trained[name] for name in labels}
    leaves: dict = {name: [] for name in component_names(labels)}
    for label, leaf in zip(jax.tree.leaves(labels), jax.tree.leaves(trained), strict=True):
        leaves[label].append(np.asarray(leaf))
    return leaves


@pytest.mark.parametrize("name", [n if n in ("a2c", "sac") else full(n) for n in AGENTS])
def test_each_component_has_its_own_optimiser(name):
    """One in plain gradients, one frozen, the others as without settings by component."""
    config, spec, names = AGENTS[name]
    assert set(components_of(config.make(spec))) == names
    first, second = sorted(names)[:2]
    chosen = dataclasses.replace(config, components={first: SGD, second: FROZEN})
    if hasattr(config, "max_gradient_norm"):
        chosen = dataclasses.replace(chosen, max_gradient_norm=None)
        config = dataclasses.replace(config, max_gradient_norm=None)
    agent, params, grads = make(chosen, spec)
    params = jax.tree.map(
        lambda x: np.where(x < -1, np.float32(-0.0), x), params
    )  # bits, not only values

    @jax.jit
    def updated(params, grads):
        results = []
        for each in (agent, config.make(spec)):
            state = each.initial_learner_state(params)
            after, _, logs = each.apply_gradients(params, state, grads)
            results.append((after, logs["gradient_norm"]))
        return results

    (after, norm), (usual, _) = updated(params, grads)
    old, new, gradient, other = (by_component(agent, x) for x in (params, after, grads, usual))
    assert set(old) == names
    total = 0.0
    for component in names:
        for p, q, g, u in zip(
            old[component], new[component], gradient[component], other[component], strict=True
        ):
            if component == first:
                np.testing.assert_array_equal(q, p + np.float32(-0.5) * g)
            elif component == second:
                assert p.tobytes() == q.tobytes()
            else:
                np.testing.assert_allclose(q, u, rtol=1e-6)
                assert np.any(q != p)
            total += float(np.sum(g**2)) * (component != second)
    np.testing.assert_allclose(norm, total**0.5, rtol=1e-5)


def test_the_clip_is_of_all_that_learns_and_schedules_are_each_components():
    """Of plain gradients: a rate that falls, one that falls faster, a constant one, none."""
    config = IMPALAConfig(
        MEMORY,
        learning_rate=0.1,
        anneal_updates=10,
        optimizer="sgd",
        max_gradient_norm=2.0,
        components={
            "core": ComponentConfig(learning_rate=1.0, anneal_updates=4),
            "policy_head": ComponentConfig(learning_rate=0.3, anneal_updates=0),
            "value_head": FROZEN,
        },
    )
    agent, params, grads = make(config, DISCRETE)
    state, step = agent.initial_learner_state(params), jax.jit(agent.apply_gradients)
    gradient = by_component(agent, grads)
    learned = [g for name, part in gradient.items() if name != "value_head" for g in part]
    norm = float(np.sqrt(sum(np.sum(g**2) for g in learned)))
    for update in range(6):
        rates = {
            "torso": 0.1 * (1 - update / 10),
            "core": max(0.0, 1 - update / 4),
            "policy_head": 0.3,
            "value_head": 0.0,
        }
        after, opt_state, logs = step(params, state, grads)
        old, new = by_component(agent, params), by_component(agent, after)
        for name, rate in rates.items():
            for p, q, g in zip(old[name], new[name], gradient[name], strict=True):
                np.testing.assert_allclose(q, p - rate * 2 / norm * g, rtol=1e-5, atol=1e-6)
            if name != "torso":
                np.testing.assert_allclose(logs[f"learning_rate_{name}"], rate, rtol=1e-6)
        np.testing.assert_allclose(logs["learning_rate"], rates["torso"], rtol=1e-6)
        params, state = after, agent.update_learner_state(after, opt_state, state)


@pytest.mark.parametrize("name", ["impala", full("ppo"), full("dqn"), "sac", full("td3")])
def test_rates_and_freezing_leave_the_learner_states_form(name):
    """So that a run can be resumed with other ones."""
    config, spec, names = AGENTS[name]
    first, second, *_ = sorted(names)
    states = []
    for updates in (None, 9):
        for components in (
            None,
            {},
            {first: ComponentConfig(learning_rate=0.1), second: FROZEN},
            {first: ComponentConfig(anneal_updates=5)},
        ):
            changes = {"components": components, "anneal_updates": updates}
            agent = dataclasses.replace(config, **changes).make(spec)
            params = jax.eval_shape(agent.initial_params, KEY)
            states.append(jax.eval_shape(agent.initial_learner_state, params))
    assert all(state == states[0] for state in states)
    old = {"impala": None, "ppo": optax.adam(1.0, eps=1e-5), "sac": optax.adam(1.0)}.get(name)
    if old is not None:  # as checkpoints have it

        def of(state):
            return [(x.shape, x.dtype) for x in jax.tree.leaves(state)]

        assert of(states[0].opt_state)[: len(of(jax.eval_shape(old.init, params)))] == of(
            jax.eval_shape(old.init, params)
        )


@pytest.mark.parametrize(
    ("components", "message"),
    [
        ({"torsso": SGD}, "agent.components: this agent has no 'torsso'; did you mean torso?"),
        ({"core": SGD}, "this agent has no 'core'; choose from: policy_head, torso, value_head"),
        ({"torso": 0.1}, "agent.components.torso: expected a ComponentConfig, got 0.1"),
        (("torso",), "agent.components: expected a mapping by component, got"),
        ({"torso": ComponentConfig(learning_rate=-1.0)}, "agent.components.torso.learning_rate: "),
        ({"torso": ComponentConfig(anneal_updates=-1)}, "agent.components.torso.anneal_updates: "),
        ({"torso": ComponentConfig(optimizer="adagrad")}, "expected one of adam, rmsprop, sgd"),
        ({"torso": ComponentConfig(frozen=1)}, "agent.components.torso.frozen: expected True"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_in_one_line(components, message):
    with pytest.raises(ConfigError) as error:
        IMPALAConfig(SMALL, components=components).make(DISCRETE)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


class Derived(IMPALA):
    """With a component of its own, whose parameters need an attribute of its own."""

    def __init__(self, config, env_spec, is_first):
        if is_first:
            self.own = {"own": {"w": np.zeros(2, np.float32)}}
        super().__init__(config, env_spec)
        self.own = {"own": {"w": np.zeros(2, np.float32)}}

    def initial_params(self, rng):
        return {**super().initial_params(rng), **self.own}


def test_a_derived_agent_sets_what_its_parameters_need_before_its_components_are_looked_up():
    config = IMPALAConfig(SMALL, components={"own": FROZEN})
    assert "own" in components_of(Derived(config, DISCRETE, is_first=True))
    with pytest.raises(ConfigError, match=r"of Derived need self\.own, .* super\(\).__init__\(\)$"):
        Derived(config, DISCRETE, is_first=False)


def test_settings_are_saved_as_plain_data():
    config = SACConfig(components={"temperature": FROZEN, "critics": SGD})
    assert decode(encode(config)) == config
    hash(config)
