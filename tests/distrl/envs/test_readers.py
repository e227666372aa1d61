"""What adapters make of an environment's values: an array or a number at each leaf of its spec."""

import dm_env
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import specs
from distrl.envs import PythonEnvironment, WrapperConfig
from distrl.envs.multi_agent.control_flow import Act, ControlFlow, ControlFlowStepper, End
from distrl.errors import ConfigError, SpecError

gymnasium = pytest.importorskip("gymnasium")
spaces = gymnasium.spaces

BOX = spaces.Box(-1e3, 1e3, (2,))


class Counting(gymnasium.Env):
    """Shows the number of its step, t, as `see` says."""

    observation_space, action_space, reward, info = BOX, spaces.Discrete(2), 1.0, {}

    def see(self, t):
        return [float(t), t + 0.5]

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.see(0), {}

    def step(self, action):
        self.t += 1
        return self.see(self.t), self.reward, False, False, self.info


class DmCounting(dm_env.Environment):
    def observation_spec(self):
        return dm_specs.Array((2,), np.float32)

    def action_spec(self):
        return dm_specs.DiscreteArray(2)

    def reward_spec(self):
        return dm_specs.Array((2,), np.float32)

    def env_info_spec(self):
        return {"position": dm_specs.Array((2,), np.float32)}

    def env_info(self):
        return {"position": [1.0 * self.t, -1.0 * self.t]}

    def reset(self):
        self.t = 0
        return dm_env.restart([0.0, 0.5])

    def step(self, action):
        self.t += 1
        return dm_env.transition([1, 2], [self.t, self.t + 0.5])


def counting(**attributes):
    return type("Some", (Counting,), attributes)


def two_steps(builder, **wrappers):
    pool = PythonEnvironment(builder, wrappers=WrapperConfig(**wrappers)).make_pool(1, 1, [0])
    pool.reset()
    pool.step(np.zeros(1, np.int32))
    step = pool.step(np.zeros(1, np.int32))
    pool.close()
    return step


@pytest.mark.parametrize("builder", [Counting, DmCounting])
@pytest.mark.parametrize("frames", [2, 3])  # as many as features, and not
def test_frames_of_lists_are_stacked_as_those_of_arrays(builder, frames):
    wanted = [[0, 0.5], [1, 1.5], [2, 2.5]][3 - frames :]
    assert two_steps(builder, frame_stack=frames).observation[0].tolist() == wanted


def test_lists_are_taken_in_a_dict_and_in_a_tuple():
    space = spaces.Dict({"a": BOX, "b": spaces.Tuple((BOX, spaces.Discrete(9, start=1)))})
    builder = counting(
        observation_space=space, see=lambda self, t: {"a": [t, 0.5], "b": [(t, 0.5), t + 1]}
    )
    for stacked in (1, 2):
        observation = two_steps(builder, frame_stack=stacked).observation
        frames = [1, 2] if stacked == 2 else 2
        np.testing.assert_array_equal(observation["a"][0, ..., 0], frames)
        np.testing.assert_array_equal(observation["b"][0][0, ..., 0], frames)
        np.testing.assert_array_equal(observation["b"][1][0], frames)


@pytest.mark.parametrize("repeats", [1, 2])
def test_rewards_and_infos_may_be_lists(repeats):
    declared = {"reward_space": BOX, "info_space": spaces.Dict({"position": BOX})}
    builder = counting(reward=[1, 2], info={"position": [3.0, 4.0]}, **declared)
    step = two_steps(builder, action_repeat=repeats)
    np.testing.assert_array_equal(step.reward, [[repeats, 2 * repeats]])
    np.testing.assert_array_equal(step.env_info["position"], [[3, 4]])
    step = two_steps(DmCounting, action_repeat=repeats)
    np.testing.assert_array_equal(step.reward, [[repeats, 2 * repeats]])
    np.testing.assert_array_equal(step.env_info["position"], [[2 * repeats, -2 * repeats]])


def test_post_process_gets_the_observation_as_an_array():
    seen = []

    def note(action, observation):
        seen.append(observation)
        return action

    two_steps(Counting, post_process=note)
    np.testing.assert_array_equal(seen, [[0, 0.5], [0, 0.5], [1, 1.5]])
    assert all(type(observation) is np.ndarray for observation in seen)


class Lists(ControlFlow):
    def agents(self):
        two = dm_specs.Array((2,), np.float32)
        return {"a": specs.EnvironmentSpec({"x": two}, two, env_info={"position": two})}

    def run_one_episode(self):
        yield Act("a", {"x": [1, 2]}, env_info={"position": [3, 4]})
        yield End("a", {"x": [5, 6]}, env_info={"position": [7, 8]})


def test_an_agent_of_a_control_flow_may_see_lists():
    stepper = ControlFlowStepper(Lists())
    for step, x in ((stepper.reset(), [1, 2]), (stepper.step({"a": np.zeros(2)}), [5, 6])):
        np.testing.assert_array_equal(step.observation["a"]["x"], x)
        np.testing.assert_array_equal(step.env_info["agents"]["a"]["position"], np.add(x, 2))
        assert type(step.observation["a"]["x"]) is np.ndarray


@pytest.mark.parametrize("frames", [1, 2])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"x": [[1], [2, 3]]}, r"\['x'\]: expected float32\[2\], got setting an array element"),
        ({"x": None}, r"\['x'\]: expected float32\[2\], got a NoneType"),
        ({"x": {"y": 1}}, r"\['x'\]: expected float32\[2\], got a dict"),
        ({"y": [1, 2]}, r": expected the names \['x'\], got \['y'\]"),
        ([1, 2], r": expected the names \['x'\], got a list"),
    ],
)
def test_what_is_no_array_is_named_by_its_place(given, said, frames):
    builder = counting(observation_space=spaces.Dict({"x": BOX}), see=lambda self, t: given)
    with pytest.raises(SpecError, match=f"^Some: first observation{said}"):
        PythonEnvironment(builder, wrappers=WrapperConfig(frame_stack=frames)).spec()


@pytest.mark.parametrize("given", [3, (1,), (1, 0, 1)])
def test_what_is_no_tuple_of_the_parts_is_refused(given):
    space = spaces.Tuple((spaces.Discrete(2, start=1), spaces.Discrete(2)))
    builder = counting(observation_space=space, see=lambda self, t: given)
    with pytest.raises(SpecError, match=r"^Some: first observation: expected a tuple of 2, got "):
        PythonEnvironment(builder).spec()


def test_names_of_several_types_are_refused():
    space = spaces.Dict({1: BOX, "a": BOX})
    with pytest.raises(ConfigError, match=r"^observation: the names .* of one type.*\[1, 'a'\]"):
        PythonEnvironment(counting(observation_space=space)).spec()
    builder = type("Mixed", (DmCounting,), {"observation_spec": lambda self: {1: None, "a": None}})
    with pytest.raises(ConfigError, match=r"^observation: the names"):
        PythonEnvironment(builder).spec()


def test_an_info_that_is_none_is_refused():
    with pytest.raises(SpecError, match=r"^step: expected a dict as info, got a NoneType$"):
        PythonEnvironment(counting(see=lambda self, t: [0.0, t], info=None)).spec()


@pytest.mark.parametrize(
    ("start", "given", "number"),
    [
        (-1, np.uint8(1), 2),
        (-1, np.bool_(False), 1),
        (-100, np.int8(100), 200),
        (-100, np.array(100, np.int8), 200),
        (7, np.uint32(7), 0),
        (2**40, 2**40 + 3, 3),
    ],
)
def test_numbers_of_any_dtype_count_from_a_start(start, given, number):
    space = spaces.Discrete(300, start=start)
    builder = counting(
        observation_space=space,
        action_space=space,
        see=lambda self, t: given,
        info_space=spaces.Dict({"number": space}),
        info={"number": given},
    )
    step = two_steps(builder)
    assert step.observation.tolist() == step.env_info["number"].tolist() == [number]
    if start < 2**31:
        np.testing.assert_array_equal(specs.raised(given, start, -1), number)


def test_integers_of_32_bits_keep_their_dtype():
    assert specs.raised(np.zeros(2, np.int32), 1, 1).dtype == np.int32
