"""Pools of environments with several agents: every stream has exactly the steps of its agent."""

import itertools
import os
import time

import numpy as np
import pytest
from dm_env import specs as dm_specs
from gymnasium import spaces

from distrl import specs
from distrl.envs.adapters.wrappers import WrapperConfig
from distrl.envs.multi_agent.assignment import Assignment, Episode
from distrl.envs.multi_agent.control_flow import Act, ControlFlow, End
from distrl.envs.multi_agent.copies import Copies
from distrl.envs.multi_agent.environment import MultiAgentEnvironment, steps_per_env_step
from distrl.envs.multi_agent.joint import JointSpec
from distrl.envs.multi_agent.parallel import ParallelStepper
from distrl.envs.multi_agent.pool import AgentPool
from distrl.envs.pool_config import PoolConfig
from distrl.envs.python import PythonEnvironment
from distrl.errors import ConfigError, EnvironmentFault, SpecError
from distrl.testing import CountingEnvironment
from distrl.types import StepType
from tests.support.selection import full

LIFETIMES = {"short": (0, 3), "late": (2, 6), "long": (0, 7)}  # first and last step of each agent


def make_agent_pool(environment, num_envs, wait_num, seeds, assignment, first_environment=0):
    pool = environment.make_pool(num_envs, wait_num, seeds)
    return AgentPool(pool, environment.agents(), assignment, first_environment)


class Lifetimes:
    """A parallel environment: each agent sees (agent, episode, its own steps); rewards count."""

    possible_agents = tuple(LIFETIMES)

    def __init__(self):
        self.agents = []
        self._episode = -1

    def observation_space(self, agent):
        return spaces.Box(-1000, 1000, (3,), np.float32)

    def action_space(self, agent):
        return spaces.Box(-1e6, 1e6, (), np.float32)

    def reset(self, seed=None, options=None):
        self._step, self._episode = 0, self._episode + 1
        self.agents = [a for a, (first, _) in LIFETIMES.items() if first == 0]
        self._last_action = {}
        return self._observations(self.agents), {}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        self._step += 1
        acted = list(self.agents)
        rewards = {a: float(actions[a]) for a in acted}
        ended = {a: self._step == LIFETIMES[a][1] for a in acted}
        self.agents = [a for a in acted if not ended[a]]
        self.agents += [a for a, (first, _) in LIFETIMES.items() if first == self._step]
        seen = self._observations({*acted, *self.agents})
        never = dict.fromkeys(acted, False)
        truncations = {a: ended[a] and a == "long" for a in acted}
        terminations = {a: ended[a] and a != "long" for a in acted} if ended else never
        return seen, rewards, terminations, truncations, {}

    def close(self):
        pass

    def _observations(self, agents):
        return {
            a: np.array(
                [self.possible_agents.index(a), self._episode, self._step - LIFETIMES[a][0]],
                np.float32,
            )
            for a in agents
        }


def _run(pool, policies, steps, streams=0):
    """Returns each stream's time steps and actions; an action is its stream and step's number.

    Receives as often as `steps` says, and then until all of `streams` streams had twenty steps: a
    pool of processes that does not wait for all receives from whichever is first.
    """
    history = {}
    pool.start()
    deadline = time.monotonic() + 60.0
    for number in itertools.count():
        if number >= steps and sum(len(had) >= 20 for had in history.values()) >= streams:
            break
        assert time.monotonic() < deadline, {key: len(had) for key, had in history.items()}
        actions = {}
        for name, timestep in pool.recv().items():
            assert name in policies
            action = (timestep.env_id * 1000 + number).astype(np.float32)
            actions[name] = action
            for row, stream in enumerate(timestep.env_id.tolist()):
                step = (
                    int(timestep.step_type[row]),
                    float(timestep.reward[row]),
                    float(timestep.discount[row]),
                    timestep.observation[row].tolist(),
                    float(timestep.prev_action[row]),
                    float(action[row]),
                )
                history.setdefault((name, stream), []).append(step)
        pool.send(actions)
    pool.close()
    return history


class Lasting(Lifetimes):
    """Its agents stay when they have ended."""

    def step(self, actions):
        acted = list(self.agents)
        answer = super().step(actions)
        self.agents = list({**dict.fromkeys(acted), **dict.fromkeys(self.agents)})
        return answer


class Vanishing(Lifetimes):
    """Its agents leave without an end."""

    def step(self, actions):
        seen, rewards, terminations, truncations, infos = super().step(actions)
        return seen, rewards, *(dict.fromkeys(x, False) for x in (terminations, truncations)), infos


class Unrewarded(Lifetimes):
    def step(self, actions):
        seen, _, *others = super().step(actions)
        return seen, {}, *others


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        (Lasting, "'short' has terminated or is truncated, and is still among"),
        (Vanishing, "'short' has left the environment's agents, neither terminated nor truncated"),
        (Unrewarded, "'short' has no reward"),
    ],
)
def test_an_agent_without_a_right_end_is_named(builder, message):
    environment = MultiAgentEnvironment(builder)
    assignment = Assignment(environment.agents(), ["a"], lambda agent, episode: "a")
    pool = make_agent_pool(environment, 1, 1, (0,), assignment)
    with pytest.raises(EnvironmentFault, match=f"agent {message}"):
        _run(pool, ["a"], 4)


class Bare(Lifetimes):
    """Its `reset` gives no infos."""

    def reset(self, seed=None, options=None):
        return super().reset(seed=seed, options=options)[0]


class Old(Lifetimes):
    """Gives four values, as an old gym's environments."""

    def step(self, actions):
        seen, rewards, terminations, _, infos = super().step(actions)
        return seen, rewards, terminations, infos


class Listing(Lifetimes):
    def step(self, actions):
        seen, rewards, *others = super().step(actions)
        return seen, list(rewards.values()), *others


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        (Bare, r"reset: expected \(observations, infos\), dicts by agent, .* got dict$"),
        (Old, r"step: expected \(observations, rewards, .* got dict, dict, dict, dict$"),
        (Listing, r"step: expected .* got dict, list, dict, dict, dict$"),
    ],
)
def test_answers_of_another_form_are_named(builder, message):
    stepper = ParallelStepper(builder(), 0)
    with pytest.raises(SpecError, match=message):
        first = stepper.reset()
        assert first.step_type == StepType.FIRST
        stepper.step(dict.fromkeys(LIFETIMES, np.zeros((), np.float32)))


class Numbered(Lifetimes):
    """Its actions are whole numbers above 0."""

    def action_space(self, agent):
        return spaces.Box(1, 3, (), np.int32)


def test_actions_of_agents_that_do_not_act_yet_are_within_their_bounds():
    environment = MultiAgentEnvironment(Numbered)
    assignment = Assignment(environment.agents(), ["a"], lambda agent, episode: "a")
    pool = make_agent_pool(environment, 1, 1, (0,), assignment)
    pool.start()
    for _ in range(20):
        timestep = pool.recv().get("a")
        actions = {}
        if timestep is not None:
            begun = timestep.step_type != StepType.FIRST
            np.testing.assert_array_equal(timestep.prev_action, np.where(begun, 2, 0))
            actions["a"] = np.full(len(begun), 2, np.int32)
        pool.send(actions)
    assert pool.episodes == 2


@pytest.mark.parametrize("kind", ["loop", "threads", "processes"])
@pytest.mark.parametrize("wait_num", [3, 2])
def test_every_agent_has_its_own_steps(kind, wait_num):
    environment = MultiAgentEnvironment(Lifetimes, pool=PoolConfig(kind=kind))
    policies = ["a", "b"]
    assignment = Assignment(
        environment.agents(), policies, {"short": "a", "late": "b", "long": "a"}
    )
    pool = make_agent_pool(environment, 3, wait_num, [0, 1, 2], assignment)
    history = _run(pool, policies, 60, streams=9)
    assert sorted(history) == [
        *[("a", stream) for stream in (0, 2, 3, 5, 6, 8)],
        *[("b", stream) for stream in (1, 4, 7)],
    ]
    for (_, stream), steps in history.items():
        agent = list(LIFETIMES)[stream % 3]
        first, last = LIFETIMES[agent]
        age, episode = 0, 0
        for k, (kind_, reward, discount, observation, prev_action, _) in enumerate(steps):
            assert observation == [stream % 3, episode, age]
            if age == 0:
                assert (kind_, reward, discount, prev_action) == (StepType.FIRST, 0, 1, 0)
            else:
                assert reward == prev_action == steps[k - 1][5]  # its own action, not another's
            if age == last - first:
                assert (kind_, discount) == (StepType.LAST, 1.0 if agent == "long" else 0.0)
                age, episode = 0, episode + 1
            else:
                assert kind_ == (StepType.MID if age else StepType.FIRST)
                assert discount == 1
                age += 1


def test_a_function_gives_whole_episodes_to_policies():
    environment = MultiAgentEnvironment(Lifetimes, pool=PoolConfig(kind="loop"))
    policies = ["even", "odd"]
    seen = []

    def policy_of(agent: str, episode: Episode) -> str:
        seen.append((agent, episode))
        return policies[episode.number % 2]

    assignment = Assignment(environment.agents(), policies, policy_of)
    pool = make_agent_pool(environment, 2, 2, [0, 1], assignment, first_environment=10)
    history = _run(pool, policies, 40)
    for (name, _), steps in history.items():
        assert {step[3][1] % 2 for step in steps} == {policies.index(name)}
        kinds = [step[0] for step in steps]
        for k, kind in enumerate(kinds[:-1]):
            assert (kind == StepType.LAST) == (kinds[k + 1] == StepType.FIRST)
    assert ("late", Episode(11, 2)) in seen


class Turns:
    """A turn-based environment (AEC) of two agents; the second one ends first."""

    possible_agents = ("x", "y")

    def agent_iter(self):
        raise NotImplementedError

    def observation_space(self, agent):
        return spaces.Box(-1000, 1000, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Box(-1e6, 1e6, (), np.float32)

    def reset(self, seed=None, options=None):
        self.agents = ["x", "y"]
        self.agent_selection = "x"
        self._count = 0
        self._cumulative_rewards = {"x": 0.0, "y": 0.0}
        self.infos = {"x": {}, "y": {}}
        self._dead = set()

    @property
    def terminations(self):
        return {agent: agent == "y" and agent in self._dead for agent in self.agents}

    def observe(self, agent):
        return np.array([self._count], np.float32)

    def last(self):
        agent = self.agent_selection
        reward, dead = self._cumulative_rewards[agent], agent in self._dead
        return self.observe(agent), reward, self.terminations[agent], dead, {}

    def step(self, action):
        agent = self.agent_selection
        if action is None:
            assert agent in self._dead
            self.agents.remove(agent)
            if self.agents:
                self.agent_selection = self.agents[0]
            return
        self._cumulative_rewards[agent] = 0.0
        for each in self.agents:
            self._cumulative_rewards[each] += 1.0  # every agent gets 1 for every turn
        self._count += 1
        if self._count == 4:
            self._dead = {"y"}
        if self._count == 6:
            self._dead = {"x", "y"}
        self.agent_selection = "y" if agent == "x" and "y" in self.agents else "x"
        if self._dead & set(self.agents):
            self.agent_selection = min(self._dead & set(self.agents))

    def close(self):
        pass


def test_turns_give_the_reward_since_the_last_turn():
    environment = MultiAgentEnvironment(Turns, pool=PoolConfig(kind="loop"))
    assignment = Assignment(environment.agents(), ["p"], {"x": "p", "y": "p"})
    history = _run(make_agent_pool(environment, 1, 1, [0], assignment), ["p"], 14)
    x = [(*step[:3], step[3][0]) for step in history["p", 0]]
    y = [(*step[:3], step[3][0]) for step in history["p", 1]]
    first, mid, last = StepType.FIRST, StepType.MID, StepType.LAST
    assert x[:5] == [
        (first, 0, 1, 0),
        (mid, 2, 1, 2),
        (mid, 2, 1, 4),
        (mid, 1, 1, 5),
        (last, 1, 1, 6),
    ]
    assert y[:3] == [(first, 0, 1, 1), (mid, 2, 1, 3), (last, 1, 0, 4)]
    assert x[5:7] == x[:2]
    assert y[3] == y[0]


@pytest.mark.parametrize(
    ("limit", "x", "y"),
    [
        (1, [(2, 1, 1, 1)], []),
        (3, [(1, 2, 1, 2), (2, 1, 1, 3)], [(2, 2, 1, 3)]),
        (4, [(1, 2, 1, 2), (2, 2, 1, 4)], [(1, 2, 1, 3), (2, 1, 0, 4)]),
        (5, [(1, 2, 1, 2), (1, 2, 1, 4), (2, 1, 1, 5)], [(1, 2, 1, 3), (2, 1, 0, 4)]),
    ],
)
def test_at_a_time_limit_an_agent_that_waits_has_what_it_got_since_its_turn(limit, x, y):
    environment = MultiAgentEnvironment(
        Turns, wrappers=WrapperConfig(max_episode_steps=limit), pool=PoolConfig(kind="loop")
    )
    assignment = Assignment(environment.agents(), ["p"], {"x": "p", "y": "p"})
    history = _run(make_agent_pool(environment, 1, 1, [0], assignment), ["p"], 14)
    for stream, first, episode in ((0, (0, 0, 1, 0), x), (1, (0, 0, 1, 1), y)):
        steps = [(*step[:3], step[3][0]) for step in history.get(("p", stream), [])]
        if episode:
            assert steps[: len(episode) + 2] == [first, *episode, first]
        else:
            assert not steps


def test_an_environment_step_has_a_time_step_of_each_agent_or_of_the_one_whose_turn_it_is():
    together, turns = MultiAgentEnvironment(Lifetimes), MultiAgentEnvironment(Turns)
    copies = Copies(PythonEnvironment(CountingEnvironment), 4)
    assert steps_per_env_step(PythonEnvironment(CountingEnvironment), ()) == 1
    assert steps_per_env_step(together, ("short", "long")) == 2
    assert steps_per_env_step(turns, ("x",)) == 0.5
    assert steps_per_env_step(turns, ("x", "y")) == 1
    assert steps_per_env_step(copies, ("2",)) == 0.25


def test_a_control_flow_ends_its_episodes_itself():
    limited = MultiAgentEnvironment(Hierarchy, wrappers=WrapperConfig(max_episode_steps=3))
    with pytest.raises(ConfigError, match=r"max_episode_steps=3 .* which Hierarchy has: let it"):
        limited.agents()


class Hierarchy(ControlFlow):
    """A manager sets a goal every three steps; the worker's episodes end with each goal."""

    def agents(self):
        number = dm_specs.Array((1,), np.float32)
        action = dm_specs.Array((), np.float32)
        return {
            "manager": specs.EnvironmentSpec(number, action),
            "worker": specs.EnvironmentSpec((number, action), action),
        }

    def run_one_episode(self):
        total = 0.0
        for option in range(2):
            goal = yield Act("manager", np.array([option], np.float32), total)
            total = 0.0
            for step in range(3):
                observation = np.array([step], np.float32), goal
                move = yield Act("worker", observation, float(step))
                total += float(move)
            yield End("worker", (np.array([3], np.float32), goal), 3.0)
        yield End("manager", np.array([2], np.float32), total)


def test_a_control_flow_of_the_users_own():
    environment = MultiAgentEnvironment(Hierarchy, pool=PoolConfig(kind="loop"))
    mapping = {"manager": "slow", "worker": "fast"}
    assignment = Assignment(environment.agents(), ["slow", "fast"], mapping)
    pool = make_agent_pool(environment, 2, 2, [0, 1], assignment)
    pool.start()
    steps = {"slow": [], "fast": []}
    for number in range(40):
        actions = {}
        for name, timestep in pool.recv().items():
            actions[name] = (timestep.env_id + 10.0 * number).astype(np.float32)
            if 0 in timestep.env_id // 2:
                row = (timestep.env_id // 2).tolist().index(0)
                steps[name].append((timestep, row, float(actions[name][row])))
        pool.send(actions)
    pool.close()
    slow = [(int(t.step_type[i]), float(t.reward[i]), float(t.observation[i][0]), a)
            for t, i, a in steps["slow"]]  # fmt: skip
    fast = [(int(t.step_type[i]), float(t.reward[i]), float(t.observation[0][i][0]),
             float(t.observation[1][i]), a) for t, i, a in steps["fast"]]  # fmt: skip
    first, mid, last = StepType.FIRST, StepType.MID, StepType.LAST
    assert [s[0] for s in slow[:6]] == [first, mid, last] * 2
    assert [s[0] for s in fast[:8]] == [first, mid, mid, last] * 2
    assert [s[1] for s in fast[:4]] == [0, 1, 2, 3]
    assert {s[3] for s in fast[:4]} == {slow[0][3]}  # the goal is the manager's action
    assert {s[3] for s in fast[4:8]} == {slow[1][3]}
    assert slow[1][1] == sum(s[4] for s in fast[:3])  # its reward is what the worker did
    assert slow[2][1] == sum(s[4] for s in fast[4:7])


def test_a_time_limit_ends_every_agents_episode():
    environment = MultiAgentEnvironment(
        Lifetimes, wrappers=WrapperConfig(max_episode_steps=5), pool=PoolConfig(kind="loop")
    )
    assignment = Assignment(environment.agents(), ["p"], dict.fromkeys(LIFETIMES, "p"))
    history = _run(make_agent_pool(environment, 1, 1, [0], assignment), ["p"], 30)
    for agent, last in (("short", 3), ("late", 3), ("long", 5)):
        steps = history["p", list(LIFETIMES).index(agent)]
        assert [s[0] for s in steps[: last + 2]] == [
            StepType.FIRST, *[StepType.MID] * (last - 1), StepType.LAST, StepType.FIRST
        ]  # fmt: skip
        assert steps[last][2] == (0.0 if agent == "short" else 1.0)


class Faulty(Lifetimes):
    def step(self, actions):
        if self._step == 4:
            self.misbehave()
        return super().step(actions)

    def misbehave(self):
        raise ValueError("broken")


class Hanging(Faulty):
    def misbehave(self):
        time.sleep(8.0)


class Dying(Faulty):
    def misbehave(self):
        os._exit(7)


@pytest.mark.parametrize(
    ("builder", "kind"),
    [
        (Faulty, "loop"),
        (Faulty, "threads"),
        (Faulty, "processes"),
        (Hanging, "threads"),
        full(Hanging, "processes"),
        (Dying, "processes"),
    ],
)
def test_a_rebuilt_environment_ends_every_agents_episode(builder, kind):
    """Of two environments, stepped together; both break in every episode."""
    step_timeout = 0.5 if builder is Hanging else 60.0
    config = PoolConfig(kind=kind, on_fault="restart", max_restarts=100, step_timeout=step_timeout)
    environment = MultiAgentEnvironment(builder, pool=config)
    assignment = Assignment(environment.agents(), ["p"], dict.fromkeys(LIFETIMES, "p"))
    pool = make_agent_pool(environment, 2, 2, [0, 1], assignment)
    history = _run(pool, ["p"], 30 if builder is Faulty else 7)
    assert pool.restarts >= 2
    for stream, length in ((0, 3), (1, 3), (2, 5), (3, 3), (4, 3), (5, 5)):
        kinds = [step[0] for step in history["p", stream]]
        assert kinds[:length] == [StepType.FIRST, *[StepType.MID] * (length - 1)]
        assert kinds[length : length + 2] == [StepType.LAST, StepType.FIRST][: len(kinds) - length]
    for stream in (2, 5):
        last = history["p", stream][5]
        assert last[1:4] == (0.0, 1.0, [2, 0, 4])


def test_a_fault_that_ends_the_run_names_the_environment():
    environment = MultiAgentEnvironment(Faulty, pool=PoolConfig(kind="loop"))
    assignment = Assignment(environment.agents(), ["p"], dict.fromkeys(LIFETIMES, "p"))
    pool = make_agent_pool(environment, 2, 2, [40, 41], assignment)
    with pytest.raises(EnvironmentFault, match=r"environment 0 \(seed 40, step 5"):
        _run(pool, ["p"], 7)


def _assignment(policies, policy_of):
    return Assignment(MultiAgentEnvironment(Lifetimes).agents(), policies, policy_of)


@pytest.mark.parametrize(
    ("policies", "policy_of", "message"),
    [
        (["a"], {"short": "a"}, "no policy for ['late', 'long']"),
        (["a"], dict.fromkeys([*LIFETIMES, "else"], "a"), "no agents ['else']"),
        (["a"], dict.fromkeys(LIFETIMES, "b"), "is 'b'; the policies are ['a']"),
        (["a", "b"], dict.fromkeys(LIFETIMES, "a"), "policies ['b'] act for no agent"),
        (["a"], "a", "policy_of must be a mapping"),
    ],
)
def test_a_wrong_assignment_is_refused(policies, policy_of, message):
    with pytest.raises(ConfigError) as error:
        _assignment(policies, policy_of)
    assert message in str(error.value)


def test_agents_of_one_policy_have_the_same_spaces():
    agents = MultiAgentEnvironment(Hierarchy).agents()
    with pytest.raises(ConfigError, match="'manager' and 'worker', whose observations differ"):
        Assignment(agents, ["p"], {"manager": "p", "worker": "p"})
    with pytest.raises(ConfigError, match="whose observations differ"):
        Assignment(agents, ["p", "q"], lambda agent, episode: "p")


def test_agents_of_one_policy_count_from_the_same_number():
    spec = specs.EnvironmentSpec(dm_specs.Array((1,), np.float32), dm_specs.DiscreteArray(2))
    agents = JointSpec({"a": spec, "b": spec._replace(action_start=0)}, in_turns=False)
    Assignment(agents, ["p"], {"a": "p", "b": "p"})
    agents = JointSpec({"a": spec, "b": spec._replace(action_start=3)}, in_turns=False)
    with pytest.raises(ConfigError, match=r"actions differ: .*, counted from 3; .* the same start"):
        Assignment(agents, ["p"], {"a": "p", "b": "p"})
    joint = agents.joint()
    assert (joint.observation_start, joint.action_start) == (None, {"a": 0, "b": 3})


def test_the_function_must_name_a_policy():
    environment = MultiAgentEnvironment(Lifetimes, pool=PoolConfig(kind="loop"))
    assignment = Assignment(environment.agents(), ["p"], lambda agent, episode: "q")
    pool = make_agent_pool(environment, 1, 1, [0], assignment)
    pool.start()
    with pytest.raises(ConfigError, match="returned 'q'; the policies are"):
        pool.recv()
    pool.close()


class Reusing(Hierarchy):
    """Has one array for all observations."""

    def run_one_episode(self):
        seen = np.zeros(1, np.float32)
        yield Act("manager", seen)
        seen[0] = 5
        yield End("manager", seen, truncated=True)
        seen[0] = -7
        yield Act("manager", seen)
        seen[0] = 3
        yield End("manager", seen)


def test_a_control_flow_may_reuse_its_arrays():
    stepper = MultiAgentEnvironment(Reusing).make_stepper(0)
    seen = [stepper.reset().observation["manager"]]
    for _ in range(3):
        seen.append(stepper.step({"manager": np.float32(0)}).observation["manager"])
    assert [array.tolist() for array in seen] == [[0], [5], [-7], [3]]


class NoEnd(Hierarchy):
    def run_one_episode(self):
        yield Act("manager", np.zeros(1, np.float32))


class Nothing(Hierarchy):
    def run_one_episode(self):
        yield from ()


class Twice(Hierarchy):
    def run_one_episode(self):
        observation = np.zeros(1, np.float32)
        yield [Act("manager", observation), Act("manager", observation)]


@pytest.mark.parametrize(
    ("control", "message"),
    [
        (NoEnd, "have no End"),
        (Nothing, "in which no agent acts"),
        (Twice, "Twice.run_one_episode: a list with two Acts of agent 'manager'"),
    ],
)
def test_a_wrong_control_flow_is_named(control, message):
    stepper = MultiAgentEnvironment(control).make_stepper(0)
    with pytest.raises(SpecError, match=message):
        stepper.reset()
        stepper.step({"manager": np.float32(0), "worker": np.float32(0)})


def test_kinds_of_environments_are_not_confused():
    with pytest.raises(ConfigError, match="use MultiAgentEnvironment"):
        PythonEnvironment(Lifetimes).spec()
    with pytest.raises(ConfigError, match="PettingZoo environment with possible_agents"):
        MultiAgentEnvironment(object).agents()
    with pytest.raises(ConfigError, match="use a transform"):
        MultiAgentEnvironment(Lifetimes, wrappers=WrapperConfig(frame_stack=2))


def test_an_episode_may_end_and_the_next_begin_in_one_list():
    class Again(Hierarchy):
        def run_one_episode(self):
            observation = np.zeros(1, np.float32)
            yield Act("manager", observation)
            answers = yield [End("manager", observation), Act("manager", observation)]
            yield End("manager", observation + np.float32(answers[1]))
            assert answers[0] is None

    stepper = MultiAgentEnvironment(Again).make_stepper(0)
    steps = [stepper.reset()]
    steps += [stepper.step({"manager": np.float32(action)}) for action in (1, 2, 3)]
    kinds = [int(step.env_info["step_type"][0]) for step in steps]
    assert kinds == [StepType.FIRST, StepType.LAST, StepType.FIRST, StepType.LAST]
    assert steps[3].observation["manager"] == [3]
