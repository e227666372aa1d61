"""R2D2: recurrent Q-learning from prioritized replay of unrolls.

Kapturowski et al. 2019, https://openreview.net/forum?id=r1lyTjAqYX.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from distrl.agents.components import ByName, components_field
from distrl.agents.defaults import (
    Defaults,
    has_grid,
    has_pixels,
    has_symbols,
    sampled,
    unrolls_within,
)
from distrl.agents.dqn import DQN, DQNConfig
from distrl.agents.exploration import EpsilonSchedule
from distrl.agents.networks import NetworkConfig, check_network
from distrl.agents.settings import SavedSettings
from distrl.config import ActorsConfig, LearnerConfig
from distrl.errors import ConfigError
from distrl.replay.config import ReplayConfig
from distrl.specs import EnvironmentSpec


@dataclasses.dataclass(frozen=True)
class R2D2Config(SavedSettings):
    """R2D2's settings: recurrent, double and dueling DQN with burn-in and rescaled values.

    Unrolls start with the recurrent state that the actor stored, which burn-in brings up to date.
    Different from the paper: the first `burn_in` transitions of each unroll are not learned from,
    unless unrolls overlap by them (`replay.period` = `replay.unroll_length` - `burn_in`; the paper:
    half the unroll); all streams have the same falling epsilon, unless it has a `spread` (the
    paper: `EpsilonSchedule(0.4, 0.4, spread=7.0)`); and a new unroll's priority is the largest so
    far, not one that its actor has computed.

    Attributes:
      network: torso, core ("lstm") and sizes.
      discount: gamma, for each step, in [0, 1].
      learning_rate: Adam's learning rate.
      adam_epsilon: added to the root of Adam's mean square of a gradient (the paper: 1e-3).
      anneal_updates: updates over which the learning rate falls linearly to 0; None: constant.
      anneal_over_budget: the learning rate falls linearly to 0 over `goal.max_env_steps`, if the
        run has one, instead of over `anneal_updates`.
      max_gradient_norm: gradients are scaled down to this global norm; None: never.
      n_step: rewards that a target sums before it bootstraps; fewer where the episode or the
        unroll ends before. Not corrected for exploration.
      burn_in: steps of each unroll that only bring the recurrent state of both networks up to
        date and are not learned from; less than the unroll has transitions.
      target_period: updates between two moves of the target network towards the online one.
      target_tau: share of the way of each move, in (0, 1].
      epsilon: schedule of the actors' epsilon-greedy actions.
      importance_exponent: an unroll sampled with probability p counts with the weight
        (p / the batch's least p) ** -importance_exponent (Schaul et al. 2016, beta). 1 corrects
        a prioritized table's bias; a uniform table has none.
      evaluation_epsilon: epsilon of evaluation, above 0 so that an episode does not go round in
        circles until its time limit. `load_policy` is greedy without it.
      dueling_streams: state value and advantages have a last hidden layer each, as in the paper;
        False: they share it.
      explore, components: as in `DQNConfig`.
    """

    BEFORE: ClassVar[Mapping[str, Any]] = DQNConfig.BEFORE

    network: NetworkConfig = NetworkConfig(core="lstm")
    discount: float = 0.997
    learning_rate: float = 1e-3
    adam_epsilon: float = 1e-8
    anneal_updates: int | None = None
    anneal_over_budget: bool = False
    max_gradient_norm: float | None = 40.0
    n_step: int = 5
    burn_in: int = 4
    target_period: int = 100
    target_tau: float = 1.0
    epsilon: EpsilonSchedule = EpsilonSchedule(steps=150_000)
    importance_exponent: float = 0.6
    evaluation_epsilon: float = 0.001
    dueling_streams: bool = True
    explore: Any = None
    components: ByName = components_field("q_network")

    def __post_init__(self) -> None:
        check_network(self)
        core = self.network.core
        if core == "none":
            raise ConfigError(
                f"agent.network.core: R2D2 needs a memory: expected lstm, got {core!r}"
            )
        self._as_dqn()

    def _as_dqn(self) -> DQNConfig:
        """Returns the same algorithm as DQN, which checks the settings."""
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return DQNConfig(
            **settings, double=True, dueling=True, huber_delta=None, value_rescaling=True
        )

    def check_replay(self, replay: ReplayConfig, batch_size: int) -> None:
        """See `DQNConfig`."""
        self._as_dqn().check_replay(replay, batch_size)

    @classmethod
    def preset(cls, env_spec: EnvironmentSpec) -> "R2D2Config":
        """Returns settings that suit an environment.

        Sources: with pixels the paper's learning rate and burn-in, but copies of the target network
        after 250 updates, not 2,500: far fewer are made here. For MiniGrid the burn-in
        of Acme's examples/baselines/rl_discrete/run_r2d2.py, the paper's epsilons, and symbols that
        are one-hot: with an epsilon that falls for all streams alike, no policy went to look at
        what it must remember. Without pixels the learning rate falls
        over the budget: with a constant one CartPole-v1 is solved and lost again.
        """
        network = NetworkConfig(hidden_sizes=(128,), activation="relu", core="lstm", core_size=128)
        if has_pixels(env_spec):
            network = dataclasses.replace(network, core_size=512)
            return cls(network=network, learning_rate=1e-4, target_period=250, burn_in=40)
        if has_grid(env_spec):
            torso = "mlp" if has_symbols(env_spec) else "auto"
            return cls(
                network=dataclasses.replace(network, torso=torso, one_hot_integers=True),
                discount=0.99,
                learning_rate=5e-4,
                burn_in=8,
                epsilon=EpsilonSchedule(0.4, 0.4, spread=7.0),
                anneal_over_budget=True,
            )
        return cls(network=network, anneal_over_budget=True)

    def defaults(
        self,
        env_spec: EnvironmentSpec,
        actors: ActorsConfig | None = None,
        learner: LearnerConfig | None = None,
    ) -> Defaults:
        """Returns the parts that suit these settings; see `Defaults`.

        Each step is trained on about eight times; rewards are left as they are. With pixels a
        sequence has the paper's 80 transitions behind a burn-in of 40, for MiniGrid Acme's 40
        behind 8; unrolls overlap by the burn-in, so that all of them are learned from.
        """
        if has_pixels(env_spec):
            length, period = 120, 80
        elif has_grid(env_spec):
            length, period = 48, 40
        else:
            length, period = 24, None
        actors = actors or ActorsConfig(num_envs=8)
        learner = learner or LearnerConfig(batch_size=16)
        replay = sampled(
            actors,
            learner,
            "prioritized",
            unroll_length=length,
            max_size=unrolls_within(4_000, env_spec, length),
            min_size_to_sample=128,
            samples_per_insert=8,
            error_buffer=256,
            priority_exponent=0.9,
        )
        return Defaults(actors, learner, dataclasses.replace(replay, period=period))

    def make(self, env_spec: EnvironmentSpec) -> DQN:
        """Returns the agent for an environment. Raises ConfigError if the two do not fit."""
        return DQN(self._as_dqn(), env_spec, "R2D2")
