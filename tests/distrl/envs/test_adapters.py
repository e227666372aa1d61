"""gymnasium and dm_env environments as steppers: spaces, boundaries, info, refusals."""

import collections
import functools
import pickle
import types

import dm_env
import jax
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import specs
from distrl.envs import PoolConfig, PythonEnvironment, WrapperConfig
from distrl.envs.adapters.conform import LeafCheck, NestCheck
from distrl.errors import ConfigError, SpecError
from distrl.testing import CountingEnvironment
from distrl.types import StepType

gymnasium = pytest.importorskip("gymnasium")
spaces = gymnasium.spaces


class Gym(gymnasium.Env):
    """Gives what it is told to: a list of (reward, terminated, truncated, info)."""

    observation_space = spaces.Box(-1, 1, (2,), np.float64)
    action_space = spaces.Discrete(2)
    ends = ((1, False, False, {}), (2, True, True, {}))

    def __init__(self):
        self.actions, self.seeds = [], []

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self._at = 0
        return self._observe(), {}

    def step(self, action):
        self.actions.append(action)
        reward, terminated, truncated, info = self.ends[self._at]
        self._at += 1
        return self._observe(), reward, terminated, truncated, info

    def _observe(self):
        return self.observation_space.sample()


def spec_of(space):
    return PythonEnvironment(with_attributes(observation_space=space)).spec().observation


def with_attributes(**attributes):
    return type("Some", (Gym,), attributes)


def stepper_and_env(builder, **wrappers):
    made = []

    def build():
        made.append(builder())
        return made[-1]

    stepper = PythonEnvironment(build, wrappers=WrapperConfig(**wrappers)).make_stepper(5)
    return stepper, made[-1]


def sent(builder, action):
    """Returns an action as it comes to an environment whose pool is sent it."""
    made = []

    def build():
        made.append(builder())
        return made[-1]

    pool = PythonEnvironment(build, pool=PoolConfig("loop")).make_pool(1, 1, [5])
    pool.reset()
    pool.step(jax.tree.map(lambda x: x[np.newaxis], action))
    pool.close()
    return made[-1].actions[-1]


def test_terminated_wins_over_truncated_and_a_limit_keeps_its_discount():
    stepper, env = stepper_and_env(Gym)
    first, mid, last = stepper.reset(), stepper.step(np.int32(0)), stepper.step(np.int32(1))
    assert first[:3] == (StepType.FIRST, 0.0, 1.0)
    assert mid[:3] == (StepType.MID, 1.0, 1.0)
    assert last[:3] == (StepType.LAST, 2.0, 0.0)
    assert isinstance(mid.reward, float)
    stepper.reset()
    assert env.seeds == [5, None]
    truncated = with_attributes(ends=((0.5, False, True, {}),))
    stepper, _ = stepper_and_env(truncated)
    stepper.reset()
    assert stepper.step(np.int32(0))[:3] == (StepType.LAST, 0.5, 1.0)


def test_spaces_become_specs():
    space = spaces.Dict(
        {
            "box": spaces.Box(-np.inf, np.inf, (3,), np.float64),
            "bounded": spaces.Box(0, 255, (2, 2), np.uint8),
            "long": spaces.Box(-5, 5, (), np.int64),
            "pair": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiBinary(4))),
            "multi": spaces.MultiDiscrete([2, 3], start=[1, 1]),
        }
    )

    def observe(self):
        value = space.sample()
        value["pair"] = (np.int64(1), value["pair"][1])
        value["multi"] = np.array([2, 3])
        return collections.OrderedDict(reversed(value.items()))

    builder = with_attributes(observation_space=space, _observe=observe)
    environment = PythonEnvironment(builder)
    spec = environment.spec().observation
    assert {k: (v.dtype, v.shape) for k, v in spec.items() if k != "pair"} == {
        "box": (np.float32, (3,)),
        "bounded": (np.uint8, (2, 2)),
        "long": (np.int32, ()),
        "multi": (np.int32, (2,)),
    }
    assert type(spec["box"]) is dm_specs.Array
    assert spec["bounded"].maximum.max() == 255
    np.testing.assert_array_equal(spec["multi"].maximum, [1, 2])
    discrete, binary = spec["pair"]
    assert isinstance(discrete, dm_specs.DiscreteArray)
    assert (discrete.num_values, binary.dtype, binary.shape) == (3, np.int8, (4,))
    seen = environment.make_stepper(0).reset().observation
    assert type(seen) is dict  # not an OrderedDict, which is another structure
    assert seen["pair"][0] == 2
    np.testing.assert_array_equal(seen["multi"], [1, 2])


@pytest.mark.parametrize(
    "space, action, wanted",
    [
        (spaces.Discrete(3, start=4), np.int32(1), np.int64(5)),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 2], np.int32), np.array([1, 2])),
        (
            spaces.Box(-0.1, 0.1, (2,), np.float64),
            np.array([9, -9], np.float32),
            np.array([0.1, -0.1]),
        ),
        (spaces.MultiBinary(2), np.array([1, 0], np.int8), np.array([1, 0], np.int8)),
    ],
)
def test_actions_come_as_the_space_has_them(space, action, wanted):
    came = sent(with_attributes(action_space=space), action)
    assert space.contains(came)  # also at its bounds, which float32 rounds
    np.testing.assert_allclose(came, wanted, rtol=1e-6)


def test_dict_actions():
    space = spaces.Dict({"go": spaces.Discrete(2, start=1), "how": spaces.Box(-1, 1, (2,))})
    action = {"go": np.int32(0), "how": np.array([5.0, 0.5], np.float32)}
    came = sent(with_attributes(action_space=space), action)
    assert came["go"] == 1
    np.testing.assert_array_equal(came["how"], [1.0, 0.5])


@pytest.mark.parametrize("space", [spaces.Text(5), spaces.Sequence(spaces.Discrete(2))])
def test_spaces_without_a_shape_are_refused(space):
    nested = spaces.Dict({"a": spaces.Discrete(2), "b": space})
    builder = with_attributes(observation_space=nested)
    with pytest.raises(ConfigError, match=r"observation\['b'\]: a space of kind (Text|Sequence)"):
        PythonEnvironment(builder).spec()


def test_success_is_kept_where_it_is_declared_or_seen():
    ends = ((0, False, False, {}), (1, True, False, {"is_success": True}))
    assert PythonEnvironment(with_attributes(ends=ends)).spec().env_info == ()
    declared = with_attributes(ends=ends, reports_success=True)
    seen = with_attributes(ends=((0, False, False, {"success": 0.0}), ends[1]))
    open_yet = with_attributes(ends=((0, False, False, {"success": -1}), ends[1]))
    for builder, mid in ((declared, -1), (seen, 0), (open_yet, -1)):
        environment = PythonEnvironment(builder)
        assert environment.spec().env_info["success"].dtype == np.int8
        stepper = environment.make_stepper(0)
        steps = [stepper.reset(), stepper.step(np.int32(0)), stepper.step(np.int32(0))]
        assert [int(step.env_info["success"]) for step in steps] == [-1, mid, 1]


@pytest.mark.parametrize(
    ("said", "code"),
    [(np.True_, 1), (1.0, 1), (np.array([0]), 0), (False, 0), (None, -1), (-1, -1)],
)
def test_success_is_a_yes_a_no_or_nothing(said, code):
    builder = with_attributes(ends=((0, False, False, {"success": said}),), reports_success=True)
    stepper = PythonEnvironment(builder).make_stepper(0)
    stepper.reset()
    assert int(stepper.step(np.int32(0)).env_info["success"]) == code


@pytest.mark.parametrize("said", [0.3, float("nan"), 2, "yes", {}])
def test_what_is_no_success_is_refused_with_its_value(said):
    builder = with_attributes(ends=((0, False, False, {"success": said}),))
    with pytest.raises(SpecError) as refused:
        PythonEnvironment(builder).spec()
    assert str(refused.value) == (
        f"info's success: expected True or 1, False or 0, or None or -1 for neither, got {said!r}"
    )


def test_a_dm_environments_success_is_checked_too():
    class Graded(CountingEnvironment):
        def env_info_spec(self):
            return {"success": dm_specs.Array((), np.float32, "success")}

        def env_info(self):
            return {"success": np.float32(0.3)}

    with pytest.raises(SpecError, match=r"env_info's success: expected .*, got .*0\.3"):
        PythonEnvironment(Graded).spec()


def test_a_declared_success_is_a_code_of_int8():
    declared = spaces.Dict({"success": spaces.Box(0, 1, (), np.uint8)})
    ends = ((0, False, False, {"success": True}),)
    environment = PythonEnvironment(with_attributes(ends=ends, info_space=declared))
    assert environment.spec().env_info["success"].dtype == np.int8
    stepper = environment.make_stepper(0)
    codes = [step.env_info["success"] for step in (stepper.reset(), stepper.step(np.int32(0)))]
    assert codes == [-1, 1]


def test_info_space_declares_what_else_is_kept():
    info = {"speed": np.array([1.0, 2.0]), "other": "text"}
    builder = with_attributes(
        ends=((0, False, False, info), (0, False, False, {})),
        info_space=spaces.Dict({"speed": spaces.Box(0, 9, (2,), np.float64)}),
    )
    environment = PythonEnvironment(builder)
    assert environment.spec().env_info["speed"].dtype == np.float32
    stepper = environment.make_stepper(0)
    np.testing.assert_array_equal(stepper.reset().env_info["speed"], [0, 0])
    step = stepper.step(np.int32(0))
    assert list(step.env_info) == ["speed"]
    np.testing.assert_array_equal(step.env_info["speed"], [1, 2])
    with pytest.raises(SpecError, match="'speed'"):
        stepper.step(np.int32(0))


@pytest.mark.parametrize(
    "wrap", [lambda env: env, lambda env: gymnasium.wrappers.TimeLimit(env, 9)]
)
def test_a_reset_without_a_seed_is_named_in_one_line(wrap):
    builder = with_attributes(reset=lambda self: (self._observe(), {}))
    with pytest.raises(SpecError, match=r"^Some.reset must take `seed` and `options`"):
        PythonEnvironment(lambda: wrap(builder())).spec()


def test_a_type_error_of_a_reset_itself_is_its_own():
    def reset(self, *, seed=None, options=None):
        return len(seed)

    with pytest.raises(TypeError, match="has no len"):
        PythonEnvironment(with_attributes(reset=reset)).spec()


def test_attributes_are_found_behind_wrappers():
    inner = with_attributes(
        reports_success=True,
        reward_space=spaces.Box(0, 9, (2,)),
        ends=((np.array([1.0, 2.0]), True, False, {}),),
    )
    environment = PythonEnvironment(lambda: gymnasium.wrappers.TimeLimit(inner(), 9))
    assert environment.spec().reward.shape == (2,)
    assert list(environment.spec().env_info) == ["success"]


@pytest.mark.parametrize("repeat", [1, 2])
def test_a_wrapper_may_make_one_number_of_a_vector_reward(repeat):
    class Sum(gymnasium.RewardWrapper):
        def reward(self, reward):
            return reward.sum()

    inner = with_attributes(
        reward_space=spaces.Box(0, 9, (2,)),
        ends=((np.array([1.0, 2.0]), False, False, {}),) * 4,
    )
    environment = PythonEnvironment(
        lambda: gymnasium.wrappers.TimeLimit(Sum(inner()), 9),
        wrappers=WrapperConfig(action_repeat=repeat),
    )
    spec = environment.spec()
    assert (spec.reward.shape, spec.reward.dtype) == ((), np.float32)
    stepper = environment.make_stepper(0)
    stepper.reset()
    reward = stepper.step(np.int32(0)).reward
    assert (type(reward), reward) == (float, 3.0 * repeat)
    own = with_attributes(reward_space=spaces.Box(0, 9, (2,)))
    with pytest.raises(SpecError, match=r"second reward: expected float32\[2\], got int64\[\]"):
        PythonEnvironment(own).spec()


def test_what_is_no_environment_is_refused():
    with pytest.raises(ConfigError, match=r"neither observation_space nor observation_spec"):
        PythonEnvironment(lambda: types.SimpleNamespace()).spec()
    with pytest.raises(ConfigError, match="vector environment"):
        PythonEnvironment(lambda: gymnasium.make_vec("CartPole-v1", 2)).spec()
    with pytest.raises(ConfigError, match="must be a function"):
        PythonEnvironment("CartPole-v1")


@pytest.mark.parametrize(
    ("reward", "got"),
    [(None, "None"), ([1.0, 2.0], r"an array of shape \[2\]; .*reward_space"), ("1,0", "'1,0'")],
)
def test_a_reward_that_is_no_number_is_named(reward, got):
    class Odd(Gym):
        def step(self, action):
            return self._observe(), reward, False, False, {}

    with pytest.raises(SpecError, match=f"step: expected a number as reward, got {got}"):
        PythonEnvironment(Odd).spec()


@pytest.mark.parametrize("reward", [2, np.int64(2), np.array(2.0), np.array([[2.0]])])
def test_rewards_are_numbers_of_any_kind_or_arrays_of_one(reward):
    class Kind(Gym):
        def step(self, action):
            return self._observe(), reward, False, False, {}

    environment = PythonEnvironment(Kind)
    stepper = environment.make_stepper(0)
    stepper.reset()
    assert stepper.step(np.int32(0)).reward == 2.0


def test_an_environment_that_cannot_be_closed_is_used_all_the_same(caplog):
    class Stuck(Gym):
        def close(self):
            raise AttributeError("no attribute 'viewer'")

    assert PythonEnvironment(Stuck).spec().action is not None
    assert "Stuck: closing it raised" in caplog.text


def test_environments_of_an_older_gym_are_named():
    class FourValues(Gym):
        def step(self, action):
            return self._observe(), 0.0, False, {}

    class OneValue(Gym):
        def reset(self, **_):
            return self._observe()

    with pytest.raises(SpecError, match=r"step: expected .*got 4 values; .*older gym"):
        PythonEnvironment(FourValues).spec()
    with pytest.raises(SpecError, match=r"reset: expected .*got a ndarray; .*older gym"):
        PythonEnvironment(OneValue).spec()


def test_an_observation_that_breaks_its_space_is_named_before_anything_starts():
    broken = with_attributes(_observe=lambda self: np.zeros(3))
    with pytest.raises(SpecError, match=r"Some: first observation: expected float32\[2\]"):
        PythonEnvironment(broken).spec()
    nested = with_attributes(
        observation_space=spaces.Dict({"a": spaces.Discrete(2)}), _observe=lambda self: {"b": 0}
    )
    with pytest.raises(SpecError, match=r"expected the names \['a'\], got \['b'\]"):
        PythonEnvironment(nested).spec()


class Dm(dm_env.Environment):
    """Rewards are vectors; says by env_info how often it was asked."""

    reward_delay = 0

    def __init__(self, seed=None):
        self.seed, self._asked = seed, 0

    def reset(self):
        return dm_env.restart(self._observe())

    def step(self, action):
        self.action = action
        reward = np.array([1.0, -1.0])
        return dm_env.TimeStep(dm_env.StepType.LAST, reward, np.float64(1), self._observe())

    def _observe(self):
        return collections.OrderedDict(b=np.zeros(2), a=(np.int64(1),))

    def observation_spec(self):
        return collections.OrderedDict(
            b=dm_specs.Array((2,), np.float64), a=(dm_specs.Array((), np.int64),)
        )

    def action_spec(self):
        return dm_specs.BoundedArray((2,), np.float64, -1, [1, np.inf])

    def reward_spec(self):
        return dm_specs.Array((2,), np.float64)

    def env_info_spec(self):
        return {"asked": dm_specs.Array((), np.int64)}

    def env_info(self):
        self._asked += 1
        return {"asked": self._asked}


def test_dm_env_environments():
    stepper, env = stepper_and_env(Dm)
    spec = PythonEnvironment(Dm).spec()
    assert (spec.reward.shape, spec.reward.dtype) == ((2,), np.float32)
    assert spec.env_info["asked"].dtype == np.int32
    assert type(spec.observation) is dict and spec.observation["b"].dtype == np.float32
    first, last = stepper.reset(), stepper.step(np.array([-1, 7], np.float32))
    assert (first.step_type, last.step_type, last.discount) == (StepType.FIRST, StepType.LAST, 1)
    assert (first.env_info, last.env_info) == ({"asked": 1}, {"asked": 2})
    np.testing.assert_array_equal(env.action, [-1, 7])
    assert env.action.dtype == np.float64
    assert type(last.observation) is dict
    np.testing.assert_array_equal(last.reward, [1, -1])


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (dm_env.transition(1.0, 0.0, 0.95), r"discount: expected 1 in .*0\.95; .*agent\.discount"),
        (dm_env.transition(1.0, 0.0, 0.0), r"discount: expected 1 in .*true end, which is LAST"),
        (dm_env.truncation(1.0, 0.0, 0.5), r"discount: expected 0 .* or 1 .* at LAST, got 0\.5"),
        (dm_env.transition(None, 0.0), "reward: expected .*got a NoneType"),
        (dm_env.transition(np.nan, 0.0), "reward: expected finite numbers, got nan"),
        (dm_env.transition(1.0, np.inf), "observation: expected finite numbers, got 1 of 1"),
        (
            dm_env.transition(1e39, 0.0),
            r"reward: expected finite .* float32 at most 3.4028.*, got 1e\+39",
        ),
        (
            dm_env.transition(-(10**400), 0.0),
            r"reward: expected finite .* at most 3.4028.*, got -10{55}\.\.\.$",
        ),
        (dm_env.restart(0.0)._replace(reward=1.0, discount=1.0), r"step_type: step\(\) gave 0"),
    ],
)
def test_what_no_run_would_take_is_refused_when_the_spec_is_read(step, said):
    class Scripted(Dm):
        reward_spec = dm_env.Environment.reward_spec

        def reset(self):
            return dm_env.restart(0.0)

        def step(self, action):
            return given

        def observation_spec(self):
            return dm_specs.Array((), np.float64)

    given = step
    with pytest.raises(SpecError, match=f"^Scripted: second {said}"):
        PythonEnvironment(Scripted).spec()
    broken = type("Late", (Scripted,), {"reset": lambda self: step._replace(step_type=1)})
    with pytest.raises(SpecError, match=r"^Late: first (step_type|observation)"):
        PythonEnvironment(broken).spec()
    strange = type("Strange", (Scripted,), {"env_info": lambda self: {"asked": 0.5}})
    with pytest.raises(SpecError, match=r"^Strange: first env_info\['asked'\]: expected int32"):
        PythonEnvironment(strange).spec()
    unchecked = PythonEnvironment(Scripted, pool=PoolConfig(check_finite=False))
    if "finite" in said:
        unchecked.spec()
    else:
        with pytest.raises(SpecError, match="second"):
            unchecked.spec()


def test_how_a_builder_takes_its_seed():
    def positional(number):
        return Dm(number)

    def nothing():
        return Dm("none")

    for builder, wanted in (
        (Dm, 5),
        (positional, 5),
        (lambda *, seed: Dm(seed), 5),
        (nothing, "none"),
        (functools.partial(Dm, 7), 7),
    ):
        seen = []
        builder = functools.wraps(builder)(
            lambda *a, b=builder, s=seen, **k: s.append(b(*a, **k)) or s[-1]
        )
        PythonEnvironment(builder).make_stepper(5)
        assert [env.seed for env in seen] == [wanted if wanted != 5 else 0, wanted]
    with pytest.raises(ConfigError, match=r"needs width, height: set them with functools\.partial"):
        PythonEnvironment(lambda width, height: Dm())


def test_workers_do_not_build_another_environment_for_its_spec():
    environment = PythonEnvironment(Counted)
    Counted.built = 0
    environment.spec()
    again = pickle.loads(pickle.dumps(environment))
    again.make_stepper(1)
    assert Counted.built == 2
    assert hash(again) == hash(environment) and again == environment
    specs.timestep_struct(again.spec())


class Counted(Dm):
    built = 0

    def __init__(self, seed):
        super().__init__(seed)
        type(self).built += 1


@pytest.mark.parametrize(
    ("space", "observation"),
    [
        (spaces.MultiBinary(3), np.array([True, False, True])),
        (spaces.Discrete(5), np.uint8(4)),
        (spaces.Discrete(5, start=3), np.uint8(4)),
        (spaces.MultiDiscrete([3, 4]), np.array([2, 3], np.uint8)),
        (spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]), [1, 2]),
        (spaces.Box(0, 300, (2,), np.int32), np.array([7, 255], np.uint8)),
        (spaces.Box(0, 300, (2,), np.float32), np.array([7, 255], np.uint8)),
        (spaces.Box(0, 2**31, (1,), np.uint32), np.array([65_535], np.uint16)),
    ],
)
def test_what_a_space_contains_is_taken(space, observation):
    builder = with_attributes(observation_space=space, _observe=lambda self: observation)
    environment = PythonEnvironment(builder)
    spec = environment.spec()
    first = environment.make_stepper(0).reset()
    leaves = NestCheck("observation", spec.observation, True)(first.observation)
    given = jax.tree.leaves(observation)
    for leaf, start, wanted in zip(leaves, jax.tree.leaves(spec.observation_start), given):
        np.testing.assert_array_equal(leaf + start, wanted)


@pytest.mark.parametrize("space", [spaces.Discrete(5), spaces.Discrete(5, start=3)])
def test_a_number_that_a_discrete_space_lacks_is_refused(space):
    check = NestCheck("state", {"x": spec_of(space)}, True)
    for number in (0, 4):
        assert check({"x": number})[0] == number
    for number in (-1, 5):
        with pytest.raises(SpecError, match=rf"state\['x'\]: expected one of 5 .* {number}$"):
            check({"x": number})
    wrong = int(space.start) + 5
    builder = with_attributes(observation_space=space, _observe=lambda self: wrong)
    with pytest.raises(SpecError, match="first observation: expected one of 5 numbers"):
        PythonEnvironment(builder).spec()


@pytest.mark.parametrize(
    ("space", "right", "wrong", "said"),
    [
        (spaces.MultiBinary(3), [0, 1, 1], [0, 2, 1], "from 0 to 1, got 2"),
        (spaces.MultiBinary(3), [0, 1, 1], [0, -1, 1], "from 0 to 1, got -1"),
        (spaces.MultiDiscrete([3, 4]), [2, 3], [2, 4], "from 0 to 3, got 4"),
        (spaces.MultiDiscrete([3, 4], start=[1, 2]), [3, 5], [0, 5], "from 1 to 3, got 0"),
    ],
)
def test_numbers_that_a_multi_space_lacks_are_refused(space, right, wrong, said):
    class Given(Gym):
        observation_space = spaces.Dict({"x": space})
        info_space = spaces.Dict({"y": space})
        observed, info = right, right

        def _observe(self):
            return {"x": np.array(self.observed)}

        def step(self, action):
            return self._observe(), 0.0, False, False, {"y": np.array(self.info)}

    environment = PythonEnvironment(Given, wrappers=WrapperConfig(frame_stack=2))
    stepper = environment.make_stepper(0)
    stepper.reset()
    step = stepper.step(np.int32(0))
    start = np.asarray(getattr(space, "start", 0))
    np.testing.assert_array_equal(step.observation["x"] + start, [right, right])
    np.testing.assert_array_equal(step.env_info["y"] + start, right)
    said = f": expected whole numbers {said}$"
    Given.info = wrong
    with pytest.raises(SpecError, match=f"^y{said}"):
        stepper.step(np.int32(0))
    Given.observed = wrong
    for act in (lambda: stepper.step(np.int32(0)), stepper.reset):
        with pytest.raises(SpecError, match=rf"^observation\['x'\]{said}"):
            act()


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_numbers_beyond_32_bits_are_refused(dtype):
    wide = spaces.Box(0, 2**40, (1,), dtype)
    builder = with_attributes(
        observation_space=wide, _observe=lambda self: np.array([2**35 + 5], dtype)
    )
    with pytest.raises(SpecError, match=r"does not fit u?int32"):
        PythonEnvironment(builder).spec()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_largest_floats_are_no_bounds(dtype):
    largest = np.finfo(dtype).max
    space = spaces.Box(np.array([-largest, 0]), np.array([largest, largest]), dtype=dtype)
    spec = PythonEnvironment(with_attributes(action_space=space)).spec().action
    np.testing.assert_array_equal(spec.minimum, [-np.inf, 0])
    np.testing.assert_array_equal(spec.maximum, [np.inf, np.inf])
    unbounded = spaces.Box(-largest, largest, (2,), dtype)
    spec = PythonEnvironment(with_attributes(action_space=unbounded)).spec().action
    assert type(spec) is dm_specs.Array


def test_bounds_of_float64_may_be_too_close_for_float32():
    low, high = np.array([0.1, 0.1, -0.1, 0.1]), np.array([0.1, 0.1 + 1e-12, -0.1, 0.2])
    space = spaces.Box(low, high, dtype=np.float64)
    spec = PythonEnvironment(with_attributes(action_space=space)).spec().action
    np.testing.assert_array_equal(spec.minimum[:3], low[:3].astype(np.float32))
    np.testing.assert_array_equal(spec.maximum[:3], low[:3].astype(np.float32))
    assert float(spec.minimum[3]) >= 0.1 and float(spec.maximum[3]) <= 0.2  # rounded inwards


def test_a_stack_of_frames_keeps_what_they_are():
    class Growing(Gym):
        observation_space = spaces.Box(0, 1000, (1,), np.int32)

        def _observe(self):
            return np.array([7], np.int8) if not self.actions else np.array([301], np.int64)

    stepper, _ = stepper_and_env(Growing, frame_stack=2)
    stepper.reset()
    np.testing.assert_array_equal(stepper.step(0).observation, [[7], [301]])


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_number_that_a_cast_makes_infinite_is_refused(dtype):
    check = LeafCheck("x", dm_specs.Array((2,), dtype), True)
    largest = float(np.finfo(dtype).max)
    for fits in (1.0, largest**0.25, largest):
        np.testing.assert_array_equal(check(np.array([0.0, fits])), np.array([0.0, fits], dtype))
    with pytest.raises(SpecError, match="x: expected finite numbers"):
        check(np.array([0.0, 2 * largest]))
