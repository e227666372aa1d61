"""A network of your own, in Haiku, for an image among vectors, with a mask of actions.

A ship sails on a grid of 5x5 cells to a buoy that a camera sees. Moves that would leave the grid
are illegal. The same torso in Flax is a module of flax.linen instead of the function.

distrl train --experiment=examples/own_network.py
"""

import gymnasium
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

from distrl.agents.impala import IMPALAConfig
from distrl.envs import PythonEnvironment, WrapperConfig
from distrl.experiment import Experiment
from distrl.goal import Goal

SIZE = 5
MOVES = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]])


class Lookout(gymnasium.Env):
    """Observations: the buoy in an image, the ship's position as numbers, and the legal moves."""

    observation_space = gymnasium.spaces.Dict(
        {
            "camera": gymnasium.spaces.Box(0, 255, (SIZE, SIZE, 1), np.uint8),
            "position": gymnasium.spaces.Box(0, 1, (2,), np.float32),
            "action_mask": gymnasium.spaces.MultiBinary(len(MOVES)),
        }
    )
    action_space = gymnasium.spaces.Discrete(len(MOVES))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        ship, buoy = self.np_random.choice(SIZE * SIZE, 2, replace=False)
        self._ship, self._buoy = np.array(divmod(ship, SIZE)), np.array(divmod(buoy, SIZE))
        return self._observe(), {}

    def step(self, action):
        self._ship = self._ship + MOVES[action]
        assert ((self._ship >= 0) & (self._ship < SIZE)).all(), "an illegal move"
        ended = bool((self._ship == self._buoy).all())
        return self._observe(), float(ended) - 0.02, ended, False, {}

    def _observe(self):
        camera = np.zeros((SIZE, SIZE, 1), np.uint8)
        camera[tuple(self._buoy)] = 255
        after = self._ship + MOVES
        legal = ((after >= 0) & (after < SIZE)).all(axis=1).astype(np.int8)
        position = (self._ship / (SIZE - 1)).astype(np.float32)
        return {"camera": camera, "position": position, "action_mask": legal}


def torso(observation):
    """Returns features [N, 64] of an observation [N, ...]; parameters are made as in any Haiku."""
    pixels = observation["camera"].astype(jnp.float32) / 255
    seen = hk.Flatten()(jax.nn.relu(hk.Conv2D(8, 3)(pixels)))
    x = jnp.concatenate([seen, observation["position"]], axis=-1)
    return jax.nn.tanh(hk.nets.MLP([64, 64])(x))


experiment = Experiment(
    PythonEnvironment(Lookout, wrappers=WrapperConfig(max_episode_steps=50)),
    IMPALAConfig(network=torso),
    goal=Goal(mean_return=0.9),
)
