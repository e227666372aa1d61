"""The flags of an experiment's transforms."""

import dataclasses
from collections.abc import Callable

import pytest
from absl import flags

from distrl.errors import ConfigError
from distrl.launch.cli import config_flags
from distrl.launch.run_dir.config_dict import as_dict
from distrl.transforms import ObservationNormalizer, RewardScale, RewardShaping, Transform


def doubled(observation, action, reward, next_observation):
    return 2 * reward


@dataclasses.dataclass(frozen=True)
class Settings:
    transforms: tuple[Transform, ...] = (
        RewardShaping(doubled),
        ObservationNormalizer(),
        RewardScale(0.1),
    )
    none: tuple[Transform, ...] = ()
    function: Callable | None = None


@pytest.fixture
def values():
    """absl's flags, without those of the settings afterwards: absl knows one set of flags."""
    before = set(flags.FLAGS)
    config_flags.define_flags(Settings())
    yield flags.FLAGS
    for name in set(flags.FLAGS) - before:
        delattr(flags.FLAGS, name)


def test_a_transforms_settings_go_by_its_name(values):
    values(
        [
            "distrl",
            "--config.transforms.reward_scale.scale=2",
            "--config.transforms.observation_normalizer.clip=None",
            "--config.transforms.observation_normalizer.leaves=('a.b', 'c')",
        ]
    )
    old = Settings()
    new = config_flags.apply_flags(old, values)
    assert new.transforms == (
        RewardShaping(doubled),
        ObservationNormalizer(clip=None, leaves=("a.b", "c")),
        RewardScale(2.0),
    )
    assert new.transforms[0] is old.transforms[0]


def test_nothing_given_changes_nothing(values):
    values(["distrl"])
    settings = Settings()
    assert config_flags.apply_flags(settings, values) is settings


@pytest.mark.parametrize("name", ["transforms", "none", "transforms.reward_shaping.function"])
def test_what_a_command_line_cannot_give_has_no_flag(values, name):
    with pytest.raises(flags.Error, match="Unknown command line flag"):
        values(["distrl", f"--config.{name}=1"])


def test_a_transform_checks_what_is_given(values):
    values(["distrl", "--config.transforms.reward_scale.scale=0"])
    with pytest.raises(ConfigError, match=r"reward_scale\.scale: expected a number above 0"):
        config_flags.apply_flags(Settings(), values)


def test_transforms_as_a_file_has_them():
    assert as_dict(Settings()) == {
        "transforms": {
            "reward_shaping": {"function": "doubled"},
            "observation_normalizer": {"clip": 10.0, "epsilon": 1e-8, "leaves": ()},
            "reward_scale": {"scale": 0.1},
        },
        "none": (),
        "function": None,
    }
