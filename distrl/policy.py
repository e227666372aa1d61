"""A trained policy as a function of observations, without the program that trained it."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np

from distrl import specs
from distrl.agents.agent import Agent
from distrl.checkpointing.params_file import load_params
from distrl.checkpointing.store import MANIFEST, PARAMS, Checkpoint, Checkpoints
from distrl.errors import ConfigError
from distrl.inferencer import Inferencer
from distrl.saved_agent import PICKLE, SETTINGS, read_settings
from distrl.task import make_agent
from distrl.types import Nest, Params, StepType, TimeStep
from distrl.variables import VariableClient


class _ConstantSource:
    """A `distrl.variables.VariableSource` of constant parameters."""

    def __init__(self, version: int, params: Params):
        self._variables = version, params

    def get_variables(self, newer_than: int) -> tuple[int, Params] | None:
        return self._variables if self._variables[0] > newer_than else None


class Policy:
    """Chooses an action for each observation of an environment, in order.

    It keeps the agent's memory: recurrent state, frame stacks, the previous action.

    Attributes:
      version: of the parameters, the number of updates that made them.
    """

    def __init__(
        self,
        agent: Agent,
        version: int,
        params: Params,
        *,
        batch_size: int | None = None,
        greedy: bool = True,
        seed: int = 0,
    ):
        """Args: see `load_policy`."""
        self.version = version
        self._single = batch_size is None
        self._size = size = 1 if batch_size is None else batch_size
        variables = VariableClient(_ConstantSource(version, jax.device_put(params)), 2**62)
        self._inferencer = Inferencer(
            agent, variables, seed=seed, max_streams=size, evaluation=greedy
        )
        self._spec = agent.env_spec
        self._streams = np.arange(size, dtype=np.int32)
        self._first = np.ones(size, bool)
        self._prev_action = specs.zeros(self._spec.action, size)

    def reset(self, which: Any = None) -> None:
        """Declares that the next observation is the first of an episode.

        Args:
          which: indices or a mask of the environments in a batch; None: all.
        """
        self._first[slice(None) if which is None else which] = True

    def __call__(self, observation: Nest, reward: Any = 0.0) -> Nest:
        """Returns the action for an observation; both conform to the environment's spec.

        Continuous actions are clipped to their bounds, as the environments of the training do. The
        agent itself sees its previous action unclipped, as in the training.

        Args:
          observation: one environment's observation; with a batch `[batch_size, ...]`.
          reward: of the previous action, an input of some recurrent networks.

        Raises:
          SpecError: the observation violates the spec of the environment of the training.
        """
        if self._single:
            observation = jax.tree.map(lambda leaf: np.asarray(leaf)[None], observation)
        struct = specs.struct(self._spec.observation)
        specs.check(observation, struct, (self._size,), "observation")
        first, rewards = self._first, specs.zeros(self._spec.reward, self._size)
        rewards[...] = reward
        rewards[first] = 0.0
        timestep = TimeStep(
            step_type=np.where(first, StepType.FIRST, StepType.MID).astype(np.int8),
            reward=rewards,
            discount=np.ones(self._size, np.float32),
            observation=observation,
            prev_action=jax.tree.map(
                lambda leaf: np.where(first.reshape(-1, *[1] * (leaf.ndim - 1)), 0, leaf).astype(
                    leaf.dtype
                ),
                self._prev_action,
            ),
        )
        action = self._inferencer.inference(self._streams, timestep).action
        self._prev_action = action
        self._first = np.zeros(self._size, bool)
        action = specs.clip(action, self._spec.action)
        return jax.tree.map(lambda leaf: leaf[0], action) if self._single else action


def load_policy(
    path: str | Path,
    which: str = "latest",
    *,
    batch_size: int | None = None,
    greedy: bool = True,
    seed: int = 0,
    trust: bool = False,
) -> Policy:
    """Loads the policy that a run has learned.

    No code of the run's files is executed, unless `trust` is set.

    Args:
      path: a run folder, or the folder of one checkpoint.
      which: "latest" or "best" (by mean return) of a run folder's checkpoints.
      batch_size: number of environments to act in at once; None: one, without a leading axis.
      greedy: choose the best action or the mode; otherwise sample, as actors do.
      seed: of the samples.
      trust: run the code that is saved with an agent or a transform of the user's own. Set it only
        for a run of yours, or of somebody who may run programs as you.

    Raises:
      ConfigError: there is no complete checkpoint, or it has code and `trust` is not set.
      SpecError: the parameters are not the agent's, or lack its statistics.
    """
    if which not in ("latest", "best"):
        raise ConfigError(f"load_policy: which must be 'latest' or 'best', got {which!r}")
    path = Path(path)
    needed = (PARAMS, (SETTINGS, PICKLE))
    if (path / MANIFEST).exists():
        checkpoint: Checkpoint | None = Checkpoint.read(path, needed)
    elif which == "best":
        checkpoint = Checkpoints(path).best(needed)
    else:
        checkpoint = Checkpoints(path).latest(only=needed)
    if checkpoint is None:
        raise ConfigError(f"load_policy: {path} is not a checkpoint, and has none")
    name = SETTINGS if SETTINGS in checkpoint.manifest["files"] else PICKLE
    settings = read_settings(checkpoint.path / name, trust)
    config = settings["agent"]
    if hasattr(config, "evaluation_epsilon"):
        config = dataclasses.replace(config, evaluation_epsilon=0.0)
    agent = make_agent(config, settings["transforms"], settings["env_spec"])
    like = jax.eval_shape(agent.initial_params, jax.ShapeDtypeStruct((2,), np.uint32))
    version, params = load_params(checkpoint.path / PARAMS, like)
    return Policy(agent, version, params, batch_size=batch_size, greedy=greedy, seed=seed)
