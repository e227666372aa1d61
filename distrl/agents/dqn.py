"""DQN: Q-learning from replay, with a target network.

Mnih et al. 2015, https://doi.org/10.1038/nature14236; double Q-learning: van Hasselt et al. 2016,
https://arxiv.org/abs/1509.06461; distributions over returns (C51): Bellemare et al. 2017,
https://arxiv.org/abs/1707.06887; noisy layers: Fortunato et al. 2018,
https://arxiv.org/abs/1706.10295. With n-step returns, dueling and a prioritized table these are
Rainbow (Hessel et al. 2018, https://arxiv.org/abs/1710.02298).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from distrl.agents.components import ByName, components_field
from distrl.agents.defaults import (
    Defaults,
    has_grid,
    has_pixels,
    reward_transforms,
    sampled,
    unrolls_within,
)
from distrl.agents.exploration import EpsilonSchedule
from distrl.agents.modules.recurrence import check_burn_in, check_unrolls
from distrl.agents.networks import NetworkConfig, check_network
from distrl.agents.q_learning import DQN
from distrl.agents.settings import SavedSettings, check_annealing
from distrl.config import ActorsConfig, LearnerConfig
from distrl.errors import ConfigError
from distrl.field_checks import (
    check_count,
    check_flag,
    check_function,
    check_kind,
    check_number,
    check_positive_or_none,
)
from distrl.replay.config import ReplayConfig
from distrl.specs import EnvironmentSpec

_MOST_ATOMS = 10_000


@dataclasses.dataclass(frozen=True)
class DQNConfig(SavedSettings):
    """DQN's settings. The loss is a mean over the real transitions of a batch of unrolls.

    Attributes:
      network: torso, core and sizes. With the core "lstm" unrolls begin with the state that the
        actor stored.
      discount: gamma, for each step, in [0, 1].
      learning_rate: Adam's learning rate.
      adam_epsilon: added to the root of Adam's mean square of a gradient. Where rewards are rare,
        and gradients therefore small, more than 1e-8 slows learning down (Rainbow, with Atari's
        clipped rewards: 1.5e-4).
      anneal_updates: updates over which the learning rate falls linearly to 0; None: constant.
      anneal_over_budget: the learning rate falls linearly to 0 over `goal.max_env_steps`, if the
        run has one, instead of over `anneal_updates`.
      max_gradient_norm: gradients are scaled down to this global norm; None: never.
      n_step: rewards that a target sums before it bootstraps; fewer where the episode or the
        unroll ends before. Not corrected for exploration.
      double: the online network chooses the action that the target network values.
      dueling: action values are a state value plus advantages (Wang et al. 2016).
      dueling_streams: state value and advantages have a last hidden layer each, as in the paper;
        False: they share it.
      num_atoms: 1: the network learns the mean return; more: the probabilities of that many
        returns, evenly spaced from value_min to value_max (C51; 51 in the paper); at most 10,000.
      noisy: the network explores by learned noise on its fully connected layers; epsilon is then
        normally 0: `EpsilonSchedule(0.0, 0.0)`. An actor draws noise at each step, for each of
        its streams. An update draws it for each step of each unroll, for the online and for the
        target network (the paper: once for a batch). Evaluation has no noise.
      value_min, value_max: bounds of the returns, with `num_atoms` above 1; with `value_rescaling`,
        bounds of h of the returns.
      huber_delta: errors above it count linearly; None: half the squared error everywhere. Not
        with `num_atoms` above 1.
      target_period: updates between two moves of the target network towards the online one.
      target_tau: share of the way of each move, in (0, 1]. A period of 100 and a tau of 1.0 copy
        the network every 100 updates; 1 and 0.005 make a moving average.
      epsilon: schedule of the actors' epsilon-greedy actions. Its `spread` gives each stream an
        epsilon.
      explore: your own function, which JAX traces, instead of epsilon-greedy actions: `(rng, values
        [B, A], epsilon) -> actions`, epsilon a scalar or [B]. Not for evaluation.
      evaluation_epsilon: epsilon of evaluation, above 0 so that an episode does not go round in
        circles until its time limit (0.05 in the paper; 0.001 as in Dopamine, Castro et al. 2018,
        https://arxiv.org/abs/1812.06110). `load_policy` is greedy without it.
      burn_in: steps of each unroll that only bring the recurrent state of both networks up to
        date and are not learned from; less than the unroll has transitions.
      value_rescaling: the networks' outputs are not returns but h of them, h(x) = sign(x)
        (sqrt(|x| + 1) - 1) + x / 1000, so that rewards of any size can be learned unclipped (Pohlen
        et al. 2018, https://arxiv.org/abs/1805.11593).
      importance_exponent: an unroll sampled with probability p counts with the weight
        (p / the batch's least p) ** -importance_exponent (Schaul et al. 2016, beta). 1 corrects
        a prioritized table's bias; a uniform table has none.
      components: settings of the optimiser by part of the network; see `ComponentConfig`.
    """

    BEFORE: ClassVar[Mapping[str, Any]] = {
        "dueling_streams": False,
        "evaluation_epsilon": 0.0,
        "adam_epsilon": 1e-5,
    }

    network: NetworkConfig = NetworkConfig(hidden_sizes=(128, 128), activation="relu")
    discount: float = 0.99
    learning_rate: float = 1e-3
    adam_epsilon: float = 1e-8
    anneal_updates: int | None = None
    anneal_over_budget: bool = False
    max_gradient_norm: float | None = 10.0
    n_step: int = 1
    double: bool = True
    dueling: bool = False
    num_atoms: int = 1
    noisy: bool = False
    value_min: float = -10.0
    value_max: float = 10.0
    huber_delta: float | None = 1.0
    target_period: int = 100
    target_tau: float = 1.0
    epsilon: EpsilonSchedule = EpsilonSchedule()
    burn_in: int = 0
    value_rescaling: bool = False
    importance_exponent: float = 0.6
    evaluation_epsilon: float = 0.001
    dueling_streams: bool = True
    explore: Any = None
    components: ByName = components_field("q_network")

    def __post_init__(self) -> None:
        check_network(self)
        check_kind(self, "epsilon", EpsilonSchedule)
        for field in ("n_step", "num_atoms", "target_period"):
            check_count(self, field)
        if self.num_atoms > _MOST_ATOMS:
            raise ConfigError(
                f"agent.num_atoms: expected at most {_MOST_ATOMS}, got {self.num_atoms}: the time "
                "of an update grows with its square"
            )
        check_number(self, "value_min", lambda x: True, "that is finite")
        check_number(
            self, "value_max", lambda x: x > self.value_min, f"above value_min={self.value_min}"
        )
        check_count(self, "burn_in", least=0)
        check_burn_in(self.burn_in, self.network)
        for field in ("double", "dueling", "dueling_streams", "noisy", "value_rescaling"):
            check_flag(self, field)
        check_number(self, "evaluation_epsilon", lambda x: 0 <= x <= 1, "in [0, 1]")
        check_number(self, "discount", lambda x: 0 <= x <= 1, "in [0, 1]")
        check_number(self, "importance_exponent", lambda x: x >= 0, "of at least 0")
        check_number(self, "target_tau", lambda x: 0 < x <= 1, "in (0, 1]")
        for field in ("learning_rate", "adam_epsilon"):
            check_number(self, field, lambda x: x > 0, "above 0")
        check_annealing(self)
        check_positive_or_none(self, "max_gradient_norm")
        check_positive_or_none(self, "huber_delta")
        check_function(self, "explore", "(rng, values, epsilon)")

    @property
    def untunable(self) -> dict[str, str]:
        """See `Tunable`."""
        if self.num_atoms == 1:
            return dict.fromkeys(("value_min", "value_max"), "without atoms nothing uses it")
        return {
            **dict.fromkeys(("value_min", "value_max"), "the atoms stand for fixed returns"),
            "huber_delta": "with several atoms nothing uses it",
        }

    def check_replay(self, replay: ReplayConfig, batch_size: int) -> None:
        """Raises ConfigError if unrolls are too short for `burn_in` and `n_step`."""
        check_unrolls(self.burn_in, self.n_step, replay.unroll_length)

    @classmethod
    def preset(cls, env_spec: EnvironmentSpec) -> "DQNConfig":
        """Returns settings that suit an environment.

        Sources with pixels: rl-baselines3-zoo's hyperparams/dqn.yml and CleanRL's dqn_atari.py for
        the learning rate; epsilon as in Dopamine (Castro et al. 2018), the shortest published
        schedule. Elsewhere our own: with a constant rate, solved tasks are lost again at times.
        """
        if not has_pixels(env_spec):
            network = dataclasses.replace(cls.network, one_hot_integers=has_grid(env_spec))
            return cls(network, n_step=5, anneal_over_budget=True)
        epsilon = EpsilonSchedule(end=0.01, steps=250_000)
        return cls(learning_rate=1e-4, target_period=1_000, epsilon=epsilon)

    def defaults(
        self,
        env_spec: EnvironmentSpec,
        actors: ActorsConfig | None = None,
        learner: LearnerConfig | None = None,
    ) -> Defaults:
        """Returns the parts that suit these settings; see `Defaults`.

        Each step is trained on eight times; ends of unrolls shorten the n-step returns. With
        pixels there are as many updates as in the paper, one of 32 transitions every four steps,
        from its 50,000th step on; the table is rl-baselines3-zoo's, with 100,000 transitions. With
        frames of 84x84 they take 3.5 GB.
        """
        pixels = has_pixels(env_spec)
        length = 1 if pixels else 16
        actors = actors or ActorsConfig(num_envs=8)
        learner = learner or LearnerConfig(batch_size=32 if pixels else 8)
        replay = sampled(
            actors,
            learner,
            "uniform",
            unroll_length=length,
            max_size=unrolls_within(100_000 if pixels else 4_000, env_spec, length),
            min_size_to_sample=50_000 if pixels else 128,
            samples_per_insert=8,
            error_buffer=256,
        )
        transforms = reward_transforms(env_spec)
        return Defaults(actors, learner, replay, transforms)

    def make(self, env_spec: EnvironmentSpec) -> "DQN":
        """Returns the agent for an environment. Raises ConfigError if the two do not fit."""
        return DQN(self, env_spec)
