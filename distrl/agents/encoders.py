"""What policy and critics share for continuous control: a torso for images, and a memory.

The critics' loss alone trains it, and the policy takes its features as they are, since the policy's
gradient would move the features under the critics: as for images in SAC-AE (Yarats et al. 2019,
https://arxiv.org/abs/1910.01741) and DrQ (Kostrikov et al. 2020, https://arxiv.org/abs/2004.13649).
The memory is treated alike, so that one stored state serves both, as in R2D2; in RDPG (Heess et al.
2015, https://arxiv.org/abs/1512.04455) policy and critic have a memory each.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from dm_env import specs as dm_specs

from distrl import specs
from distrl.agents.modules import images
from distrl.agents.modules.network_body import Network, build
from distrl.agents.modules.normals import BoundedActions
from distrl.agents.modules.recurrence import burn_in
from distrl.agents.networks import NetworkConfig
from distrl.random_keys import derive
from distrl.specs import EnvironmentSpec
from distrl.types import Nest, Params, State, TimeStep, Trajectory

ENCODER = "encoder"


class Encoder(NamedTuple):
    """A network between observations and what policy and critics see; or none.

    Attributes:
      env_spec: the environment's, with what policy and critics see as the observation.
      network: its outputs are features [..., F]; None: policy and critics see observations.
    """

    env_spec: EnvironmentSpec
    network: Network | None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its part of an agent's parameters: one, or none."""
        return () if self.network is None else (ENCODER,)

    def initial_params(self, rng: jax.Array) -> Params:
        """Returns its part of an agent's parameters, by name. Args: rng: the agent's raw key."""
        return {} if self.network is None else {ENCODER: self.network.init(derive(rng, ENCODER))}

    def initial_state(self, batch_size: int) -> State:
        """Returns the recurrent state at an episode's start, [B, ...]; () without memory."""
        return () if self.network is None else self.network.initial_state(batch_size)

    def step(self, params: Params, timestep: TimeStep, state: State) -> tuple[Nest, State]:
        """Returns what policy and critics see in one step, [B, ...], and the state after it.

        Args:
          params: the agent's.
          timestep, state: [B, ...].
        """
        if self.network is None:
            return timestep.observation, state
        return self.network.step(params[ENCODER], timestep, state)

    def encode(
        self, params: Params, target: Params, batch: Trajectory, length: int
    ) -> tuple[Trajectory, Trajectory]:
        """Returns a batch as the networks see it, and as the target networks do.

        The features at LAST, from which a time limit bootstraps, have the memory of their episode.

        Args:
          params, target: parameters of the agent, and of its target networks.
          batch: [T + 1, B, ...].
          length: steps of each unroll that only bring the memory up to date.

        Returns:
          [T + 1 - length, B, ...], with features instead of observations.
        """
        if self.network is None:
            return batch, batch
        unrolls: list[Any] = [
            partial(self.network.unroll, each[ENCODER]) for each in (params, target)
        ]
        rest, states = burn_in(unrolls, batch, length)

        def encoded(unroll: Callable[..., Any], state: State) -> Trajectory:
            features, _ = unroll(rest.timestep, state)
            return rest._replace(timestep=rest.timestep._replace(observation=features))

        online, target_batch = (encoded(*each) for each in zip(unrolls, states, strict=True))
        return online, target_batch


def make_encoder(
    config: NetworkConfig, env_spec: EnvironmentSpec, actions: BoundedActions
) -> Encoder:
    """Returns what policy and critics share.

    There is something if an observation has an image, or if `config` asks for it: by a core, a
    torso other than "auto", or names of inputs.

    Args:
      config: settings of torso and core.
      env_spec: spec of the environment.
      actions: its actions, for the core's inputs.

    Raises:
      ConfigError: the network cannot take the observations.
    """
    asked = config.core != "none" or config.torso != "auto" or config.inputs
    if not asked and not images.has_any(env_spec.observation):
        return Encoder(env_spec, None)
    network = build(config, env_spec, actions.encode, lambda: lambda x: x, ())

    def features(rng: jax.Array) -> jax.Array:
        timestep = specs.zeros(specs.timestep_struct(env_spec), 1)
        return network.step(network.init(rng), timestep, network.initial_state(1))[0]

    size = jax.eval_shape(features, jax.ShapeDtypeStruct((2,), np.uint32)).shape[-1]
    features_spec = dm_specs.Array((size,), np.float32, "features")
    return Encoder(env_spec._replace(observation=features_spec), network)
