"""Settings as flags: how they are parsed, described and refused."""

import dataclasses
import math
import re
import sys
import types
from typing import Any, Literal

import pytest
from absl import flags

from distrl import presets
from distrl.agents.components import ByName, components_field
from distrl.agents.dqn import DQNConfig
from distrl.agents.ppo import PPOConfig
from distrl.errors import ConfigError
from distrl.launch.cli import config_flags
from distrl.launch.run_dir.config_dict import as_dict
from distrl.transforms import FrameStack, ObservationClip, RewardClip, RewardScale


@dataclasses.dataclass(frozen=True)
class Inner:
    """Sizes.

    Attributes:
      size: Number of things,
        1 or more.
      rate, widths: Two others.

    Nothing more.
    """

    size: int = 3
    rate: float = 0.5
    widths: tuple[int, ...] = (64, 64)

    def __post_init__(self):
        if self.size < 1:
            raise ConfigError(f"inner.size must be 1 or more, got {self.size}")


def parts_field():
    return dataclasses.field(default=None, metadata={"names": ("left", "right"), "kind": Inner})


@dataclasses.dataclass(frozen=True)
class Settings:
    inner: Inner = Inner()
    limit: int | None = None
    goal: float | str | None = "auto"
    name: str = "task"
    on: bool = False
    function: object = print  # no setting of a command line
    parts: dict[str, Inner] | None = parts_field()


@pytest.fixture
def values():
    """absl's flags, without those of the settings afterwards: absl knows one set of flags."""
    before = set(flags.FLAGS)
    config_flags.define_flags(Settings())
    made = flags.FLAGS
    yield made
    for name in set(flags.FLAGS) - before:
        delattr(flags.FLAGS, name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("inner.size", "Number of things, 1 or more."),
        ("inner.rate", "Two others."),
        ("inner.widths", "Two others."),
        ("limit", "int or None"),  # not described
    ],
)
def test_a_setting_is_described_by_its_docstring(values, name, text):
    assert values[f"config.{name}"].help == text


@pytest.mark.parametrize(
    ("argument", "path", "value"),
    [
        ("--config.inner.size=7", "inner.size", 7),
        ("--config.inner.size=1e6", "inner.size", 1_000_000),
        ("--config.inner.rate=2", "inner.rate", 2.0),
        ("--config.inner.rate=1e-3", "inner.rate", 0.001),
        ("--config.inner.widths=(32, 16)", "inner.widths", (32, 16)),
        ("--config.inner.widths=[32]", "inner.widths", (32,)),
        ("--config.inner.widths=32", "inner.widths", (32,)),
        ("--config.inner.widths=0.5", "inner.widths", (0.5,)),
        ("--config.inner.rate=inf", "inner.rate", math.inf),
        ("--config.inner.rate=math.inf", "inner.rate", math.inf),
        ("--config.inner.rate=-inf", "inner.rate", -math.inf),
        ("--config.inner.widths=(2, inf)", "inner.widths", (2, math.inf)),
        ("--config.name=inf", "name", "inf"),
        ("--config.limit=5", "limit", 5),
        ("--config.limit=None", "limit", None),
        ("--config.goal=None", "goal", None),
        ("--config.goal=475", "goal", 475.0),
        ("--config.goal=auto", "goal", "auto"),
        ("--config.name=3", "name", "3"),
        ("--config.on=true", "on", True),
        ("--config.on=False", "on", False),
    ],
)
def test_settings_are_read_by_their_type(values, argument, path, value):
    values(["distrl", argument])
    old = Settings()
    new = config_flags.apply_flags(old, values)
    found = new
    for part in path.split("."):
        found = getattr(found, part)
    assert found == value
    assert type(found) is type(value)
    untouched = "inner" if "." not in path else "goal"
    assert getattr(new, untouched) == getattr(old, untouched)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--config.inner.size=1.5", "expected int, got '1.5'"),
        ("--config.inner.size=None", "expected int, got 'None'"),
        ("--config.inner.size=True", "expected int, got 'True'"),
        ("--config.inner.rate=fast", "expected float, got 'fast'"),
        ("--config.inner.rate=nan", "expected float, got 'nan'"),
        ("--config.inner.size=inf", "expected int, got 'inf'"),
        (f"--config.inner.rate=1{400 * '0'}", "expected float, got '10000"),
        ("--config.limit=x", "expected int or None, got 'x'"),
        ("--config.on=3", "expected bool, got '3'"),
        ("--config.function=print", "Unknown command line flag 'config.function'"),
    ],
)
def test_settings_of_another_type_are_refused(values, argument, message):
    with pytest.raises(flags.Error, match=message):
        values(["distrl", argument])


def test_nothing_given_changes_nothing(values):
    values(["distrl"])
    settings = Settings()
    assert config_flags.apply_flags(settings, values) is settings


def test_settings_by_name_are_those_that_are_given(values):
    values(["distrl", "--config.parts.left.size=4"])
    assert config_flags.apply_flags(Settings(), values).parts == {"left": Inner(size=4)}
    given = Settings(parts={"other": Inner(), "left": Inner(rate=0.1)})
    assert config_flags.apply_flags(given, values).parts == {
        "other": Inner(),
        "left": Inner(size=4, rate=0.1),
    }


@dataclasses.dataclass(frozen=True)
class Predicting(PPOConfig):
    components: ByName = components_field("actor_critic", "predictor")


def test_heads_and_components_of_ones_own_have_flags():
    for settings, name in (
        (PPOConfig(), "heads"),
        (DQNConfig(), "heads"),
        (Predicting(), "predictor"),
    ):
        names = config_flags.describe(settings, "agent")
        for component in ("torso", name):
            assert f"agent.components.{component}.learning_rate" in names


def test_a_dataclass_checks_what_is_given(values):
    values(["distrl", "--config.inner.size=0"])
    with pytest.raises(ConfigError, match="size must be 1 or more, got 0"):
        config_flags.apply_flags(Settings(), values)


def test_settings_as_a_file_has_them():
    written = as_dict(Settings())
    assert written["inner"] == {"size": 3, "rate": 0.5, "widths": (64, 64)}
    assert written["limit"] is None
    assert written["function"] == "print"


@dataclasses.dataclass(frozen=True)
class Layered:
    layers: tuple[Inner, ...] = (Inner(), Inner(size=4))
    several: tuple[Any, ...] = (Inner(),)
    functions: tuple = (print, len)
    options: tuple = (("desc", ["SFG"]), ("slippery", False))


def test_dataclasses_without_names_have_no_flags_and_are_a_list_in_a_file(values):
    assert set(config_flags.describe(Layered(), "config")) == {"config.options"}
    assert config_flags.apply_flags(Layered(), values) == Layered()
    assert [layer["size"] for layer in as_dict(Layered())["layers"]] == [3, 4]


@dataclasses.dataclass(frozen=True)
class Chosen:
    kind: Literal["sum", "mean"] = "sum"
    level: Literal[1, 2, "auto"] | None = None
    sizes: list[int] = dataclasses.field(default_factory=list)


def test_a_literal_has_the_types_of_its_values_and_a_list_no_flag():
    kinds = {n: leaf.kinds for n, leaf in config_flags.describe(Chosen(), "config").items()}
    assert kinds == {"config.kind": (str,), "config.level": (int, str, type(None))}


LATER = """
from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from somewhere import Rate

@dataclasses.dataclass(frozen=True)
class Later:
    size: int | None = None
    limit: Optional[int] = 3
    rate: Rate = 0.5
    flag: "bool" = False
"""


@pytest.mark.parametrize("known", [True, False])  # as a class that was sent to another process
def test_annotations_may_be_text_with_names_that_are_not_known(monkeypatch, known):
    module = types.ModuleType("of_later_settings")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(LATER, vars(module))
    settings = module.Later()
    if not known:
        monkeypatch.delitem(sys.modules, module.__name__)
    kinds = {name: leaf.kinds for name, leaf in config_flags.describe(settings, "config").items()}
    assert kinds == {
        "config.size": (int, type(None)),
        "config.limit": (int, type(None)),
        "config.rate": (float,),  # that of its value
        "config.flag": (bool,),
    }


LEANS = re.compile(r"(as in|see|the same|it|they|likewise|of|which|after which|above)\b|.* as in `")


def test_a_settings_text_needs_no_other():
    """`--help` lists settings by the alphabet, and the pages of algorithms show some of them."""
    parts = {
        "config": presets.experiment("CartPole-v1"),
        **{f"agent {name}": make() for name, make in presets.AGENTS.items()},
        **{kind.name: kind() for kind in (ObservationClip, RewardClip, RewardScale, FrameStack)},
    }
    texts = {
        name: leaf.doc
        for prefix, settings in parts.items()
        for name, leaf in config_flags.describe(settings, prefix).items()
    }
    assert len(texts) > 200
    assert {name: text for name, text in texts.items() if LEANS.match(text)} == {}
    assert all("`" in text or " " in text for text in texts.values())  # not the type alone
