"""DDPG: a deterministic policy that climbs one critic.

Lillicrap et al. 2015, https://arxiv.org/abs/1509.02971.
"""

import dataclasses
from typing import ClassVar

from distrl.agents.action_noise import NoiseSchedule
from distrl.agents.components import ByName, components_field
from distrl.agents.continuous import SHARED, ContinuousDefaults
from distrl.agents.exploration import EpsilonSchedule
from distrl.agents.networks import NetworkConfig
from distrl.agents.td3 import TD3, TD3Config
from distrl.specs import EnvironmentSpec


@dataclasses.dataclass(frozen=True)
class DDPGConfig(ContinuousDefaults):
    """DDPG's settings. It is TD3 without TD3's three additions.

    Different from the paper, as in later work: no batch normalisation (see the transform
    `observation_normalizer`), no weight decay, and independent Normal noise.

    Attributes:
      hidden_sizes: layers of the policy's MLP and of the critic's.
      activation: "relu" or "tanh".
      discount: gamma, for each step, in [0, 1].
      policy_learning_rate: Adam's learning rate for the policy.
      critic_learning_rate: Adam's learning rate for the critic.
      anneal_updates: updates over which learning rates fall linearly to 0; None: constant.
      anneal_over_budget: learning rates fall linearly to 0 over `goal.max_env_steps`, if the run
        has one, instead of over `anneal_updates`.
      target_tau: share of the way that the target networks move towards policy and critic after
        each update, in (0, 1].
      exploration_noise: standard deviation of the noise on the actors' actions, in units of half
        the action's range; evaluation has none.
      epsilon: as in TD3: uniformly random actions until the first update.
      exploration: as in TD3: kind of the noise, and its schedule.
      components: as in TD3.
    """

    RANDOM_STEPS: ClassVar[int] = 10_000

    hidden_sizes: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    discount: float = 0.99
    policy_learning_rate: float = 3e-4
    critic_learning_rate: float = 3e-4
    anneal_updates: int | None = None
    anneal_over_budget: bool = False
    target_tau: float = 0.005
    exploration_noise: float = 0.1
    epsilon: EpsilonSchedule = EpsilonSchedule(1.0, 0.0, updates=1)
    importance_exponent: float = 0.6
    scale_integers: bool = True
    exploration: NoiseSchedule = NoiseSchedule()
    components: ByName = components_field("deterministic")
    network: NetworkConfig = SHARED
    burn_in: int = 0

    def __post_init__(self) -> None:
        self.check_shared()
        self._as_td3()

    def _as_td3(self) -> TD3Config:
        """Returns the same algorithm: one critic, no delay, and no target noise."""
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return TD3Config(**settings, num_critics=1, policy_delay=1, target_noise=0.0)

    def make(self, env_spec: EnvironmentSpec) -> TD3:
        """Returns the agent for an environment. Raises ConfigError if the two do not fit."""
        return TD3(self._as_td3(), env_spec, "DDPG")
