"""Every field of every configuration class refuses what it cannot be, with one clear line."""

import ast
import dataclasses
import functools
import math
import types
import typing
from pathlib import Path

import numpy as np
import pytest

import distrl
from distrl import envs, presets, transforms
from distrl.agents.components import ComponentConfig
from distrl.agents.dqn import DQNConfig
from distrl.agents.prediction import PredictionConfig
from distrl.agents.reinforce import ReinforceConfig
from distrl.agents.tunable import Tunable
from distrl.envs import PythonEnvironment, WrapperConfig
from distrl.envs.multi_agent.copies import Copies
from distrl.envs.multi_agent.environment import MultiAgentEnvironment
from distrl.envs.pool_config import PoolConfig
from distrl.errors import ConfigError
from distrl.field_checks import choose_from, did_you_mean
from distrl.population import Population
from distrl.sharing import Shared
from distrl.testing import CountingEnvironment

DISCRETE, CONTINUOUS = envs.make("CartPole-v1"), envs.make("Pendulum-v1")
AGENTS = {**presets.AGENTS, "reinforce": ReinforceConfig, "prediction": PredictionConfig}
OF_CONTINUOUS = ("ddpg", "sac", "td3")


def made(name, settings):
    """Makes the agent, too, which looks at its components."""
    return settings.make((CONTINUOUS if name in OF_CONTINUOUS else DISCRETE).spec())


def in_agent(name, field):
    return lambda part: made(name, dataclasses.replace(AGENTS[name](), **{field: part}))


# By name: valid settings, and what has to refuse them once they are changed, if they do not.
SETTINGS = {
    **{name: (kind(), functools.partial(made, name)) for name, kind in AGENTS.items()},
    "network": (AGENTS["dqn"]().network, in_agent("dqn", "network")),
    "epsilon": (AGENTS["dqn"]().epsilon, in_agent("dqn", "epsilon")),
    "noise": (AGENTS["ddpg"]().exploration, in_agent("ddpg", "exploration")),
    "component": (
        ComponentConfig(),
        lambda part: in_agent("dqn", "components")({"torso": part}),
    ),
    "tunable": (Tunable(DQNConfig(), {"learning_rate": (1e-4, 1e-2)}), None),
    "experiment": (EXPERIMENT := presets.experiment("CartPole-v1", "dqn"), None),
    **{
        field.name: (part, None)
        for field in dataclasses.fields(EXPERIMENT)
        if field.name not in ("agent", "environment")
        and dataclasses.is_dataclass(part := getattr(EXPERIMENT, field.name))
    },
    "population": (Population(), None),
    "shared": (Shared(("a", "b")), None),
    "native": (DISCRETE, None),
    "python": (COUNTING := PythonEnvironment(CountingEnvironment, "counting"), None),
    "several": (MultiAgentEnvironment(CountingEnvironment, "counting"), None),
    "pool": (PoolConfig(), None),
    "wrappers": (WrapperConfig(), None),
    "copies": (Copies(COUNTING, 2), None),
    **{
        name: (kind(), None)
        for name, kind in transforms.TRANSFORMS.items()
        if all(field.default is not dataclasses.MISSING for field in dataclasses.fields(kind))
    },
}

OF_ALGORITHMS = {
    *AGENTS, *transforms.TRANSFORMS, "network", "epsilon", "noise", "component", "tunable",
}  # fmt: skip
"""Settings that are refused with numbers of NumPy's, as which they could not be saved."""

TAKE_ANYTHING = {
    ("experiment", "task"): str,  # names
    ("python", "name"): str,
    ("several", "name"): str,
    **{(name, "anneal_updates"): float for name in AGENTS},  # of a budget, which may end within one
}
"""Types of which a field takes any value, although its annotation has others or choices."""

JUNK = {
    bool: ("False", 0, 1, None, math.nan, ()),
    int: ("1", 1.5, 8.0, True, None, math.nan, -1, ()),
    float: ("1", True, None, math.nan, ()),
    str: ("no such choice", 3, None, math.nan, ()),
}


def junk_of(annotation, taken):
    """Returns values that a field must refuse. Args: taken: a type of which it takes any value."""
    is_union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    kinds = typing.get_args(annotation) if is_union else (annotation,)
    junk = [object(), *(value for kind in kinds for value in JUNK.get(kind, ()))]
    numbers = float in kinds  # which may be whole
    return [
        value
        for value in junk
        if not (value is None and types.NoneType in kinds)
        and not (numbers and type(value) is int)
        and not isinstance(value, taken)
    ]


@pytest.mark.parametrize("name", SETTINGS)
def test_every_field_refuses_what_it_cannot_be(name):
    settings, check = SETTINGS[name]
    hints = typing.get_type_hints(type(settings))
    for field in dataclasses.fields(settings):
        for value in junk_of(hints[field.name], TAKE_ANYTHING.get((name, field.name), ())):
            with pytest.raises(ConfigError) as error:
                changed = dataclasses.replace(settings, **{field.name: value})
                if check is not None:
                    check(changed)
                pytest.fail(f"{type(settings).__name__}.{field.name} takes {value!r}")
            assert "\n" not in str(error.value)


def test_a_whole_number_that_no_float_can_be_is_refused():
    for settings, name in ((SETTINGS["ppo"][0], "learning_rate"), (Population(), "share")):
        with pytest.raises(ConfigError, match=name):
            dataclasses.replace(settings, **{name: 10**400})


OF_NUMPY = (np.float32, np.float64, np.int64, np.bool_)


@pytest.mark.parametrize("name", [name for name in SETTINGS if name not in OF_ALGORITHMS])
def test_numbers_of_numpy_become_pythons(name):
    settings, _ = SETTINGS[name]
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, (bool, int, float)):
            for kind in OF_NUMPY:
                plain = kind(value).item()
                if plain == value and type(plain) is type(value):
                    changed = dataclasses.replace(settings, **{field.name: kind(value)})
                    assert type(getattr(changed, field.name)) is type(value), (field.name, kind)
                    assert changed == settings


def test_all_classes_of_settings_are_checked():
    folder = Path(distrl.__file__).parent
    names = {
        node.name
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and node.name.endswith("Config")
    }
    protocols = {"AgentConfig", "AlgorithmConfig"}
    elsewhere = {"CheckingConfig"}
    checked = {type(settings).__name__ for settings, _ in SETTINGS.values()}
    assert names - checked == protocols | elsewhere


def test_an_unknown_name_gets_a_similar_one_or_all():
    assert choose_from("unifrom", ("queue", "uniform")) == "; did you mean uniform?"
    assert choose_from("stack", ("queue", "uniform")) == "; choose from: queue, uniform"
    assert choose_from(None, ("queue", "uniform")) == "; choose from: queue, uniform"
    assert did_you_mean("stack", ("queue", "uniform")) == ""
    twice = ("Pong-v5", "Pong-v4", "Pong-v5")
    assert did_you_mean("Pong-v", twice, most=3) == "; did you mean Pong-v5 or Pong-v4?"
