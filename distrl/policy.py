"""A trained policy as a function of observations, without the program that trained it."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from distrl import specs
from distrl.agents.agent import Agent
from distrl.agents.compiling import make_clients
from distrl.agents.settings import algorithm, with_settings
from distrl.agents.structs import params_struct
from distrl.checkpointing.params_file import load_params
from distrl.checkpointing.store import MANIFEST, PARAMS, Checkpoint, Checkpoints
from distrl.envs.clipping import ActionClip
from distrl.errors import ConfigError
from distrl.inferencer import Inferencer
from distrl.policy_output import PolicyOutput, WithDistribution
from distrl.runtime.files import TASKS
from distrl.runtime.jax_settings import own_settings
from distrl.saved.saved_agent import PICKLE, SETTINGS, read_settings
from distrl.task import make_agent
from distrl.types import Nest, Params, StepType, TimeStep
from distrl.variables.client import ConstantSource, VariableClient

POLICY_FILES = (PARAMS, (SETTINGS, PICKLE))
"""The files of a checkpoint that make a policy; see `Checkpoint.read`."""


class Policy:
    """Chooses an action for each observation of an environment, in order.

    It keeps the agent's memory: recurrent state, frame stacks, the previous action. One object
    serves one thread at a time.

    Attributes:
      version: version of the parameters, the number of updates that made them.
      batch_size: number of environments that it acts in at once; None: any.
      env_spec: spec of the environment that it was trained in.
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
        make_clients()
        self.version = version
        self.batch_size = batch_size
        self._variables = VariableClient(ConstantSource(version, jax.device_put(params)), 2**62)
        self._name = type(getattr(agent, "agent", agent)).__name__
        self._agent: Any = WithDistribution(agent)
        self._greedy, self._seed = greedy, seed
        self._inferencers: dict[int, Inferencer] = {}  # by number of environments
        self.env_spec = agent.env_spec
        self._clip = ActionClip(agent.env_spec.action)
        self._size = 0
        with own_settings():
            self._begin(1 if batch_size is None else batch_size)

    def _begin(self, size: int) -> None:
        """Begins the episodes of a number of environments, with new memory."""
        before = self._inferencers.get(self._size)
        inferencer = self._inferencers.get(size)
        if inferencer is None:
            inferencer = self._inferencers[size] = Inferencer(
                self._agent,
                self._variables,
                seed=self._seed,
                max_streams=size,
                evaluation=self._greedy,
            )
        if before is not None:
            inferencer.continue_random_keys(before)
        self._size, self._inferencer = size, inferencer
        self._streams = np.arange(size, dtype=np.int32)
        self._first = np.ones(size, bool)
        self._prev_action = specs.zeros(self.env_spec.action, size)

    def reset(self, which: Any = None) -> None:
        """Declares that the next observation is the first of an episode.

        Args:
          which: indices or a mask of the environments in a batch; None: all. Without `batch_size`,
            a mask of another number of environments than in the call before is for a batch of that
            number, in which all episodes begin.

        Raises:
          ConfigError: there is no such environment.
        """
        mask = np.asarray(which)
        is_mask = mask.dtype == bool and mask.ndim == 1
        if is_mask and len(mask) != self._size and self.batch_size is None:
            with own_settings():
                self._begin(len(mask))
        try:
            self._first[slice(None) if which is None else which] = True
        except IndexError as error:
            raise ConfigError(
                f"Policy.reset: got {which!r:.80} for {self._size} environments; give indices or "
                "a mask of these, or load the policy with the batch_size that you act with"
            ) from error

    def __call__(self, observation: Nest, reward: Any = 0.0) -> Nest:
        """Returns the action for an observation, both as the environment has them.

        They conform to its spec, except that gymnasium's `Discrete` and `MultiDiscrete` spaces with
        a `start` count from it.

        Continuous actions are clipped to their bounds, as environments do unless `clip_actions` is
        off. The agent itself sees its previous action unclipped, as in training.

        A list, an array of 64 bits, or an integer instead of a float is converted, and so is any
        mapping instead of a dict, or sequence instead of a tuple. If the number of observations
        differs from the previous call's, all episodes begin again; the first call with a new
        number compiles for it.

        Args:
          observation: one environment's observation, or those of several as `[B, ...]`; the
            actions then are `[B, ...]` too.
          reward: the previous action's reward, an input of some recurrent networks.

        Raises:
          SpecError: the observation violates the spec of the training's environment.
        """
        return self._act(self._lowered(observation), reward, None, for_environment=True)[0]

    def in_pool(self, observation: Nest, reward: Any = 0.0) -> Nest:
        """Like a call, but for a pool: numbers count from 0, and clipping is left to the pool."""
        return self._act(observation, reward, None)[0]

    def act(self, observation: Nest, reward: Any = 0.0, action: Nest = None) -> PolicyOutput:
        """Returns an action for an observation, with its log-probability; use it instead of a call.

        Args:
          observation, reward: as in a call.
          action: an action that was taken, to be judged: it gets its log-probability, and is the
            previous action of the next observation. None: the policy chooses.

        Raises:
          SpecError: observation or action violate their specs.
          ConfigError: the policy's actions have no known distribution: DDPG's and TD3's, and
            those of an exploration of the user's own.
        """
        start = self.env_spec.action_start
        given = specs.raised(specs.rebuilt(action, self.env_spec.action), start, -1)
        chosen, extras = self._act(self._lowered(observation), reward, given, for_environment=True)
        if not extras:
            raise ConfigError(
                f"Policy.act: the actions of {self._name} have no known distribution; call the "
                "policy itself for the action alone"
            )
        return PolicyOutput(chosen, *extras)

    def _lowered(self, observation: Nest) -> Nest:
        """Returns an environment's observation as a pool has it."""
        observation = specs.rebuilt(observation, self.env_spec.observation)
        return specs.raised(observation, self.env_spec.observation_start, -1)

    def _is_single(self, observation: Nest) -> bool:
        """Returns whether an observation is that of one environment, without a leading axis."""
        if self.batch_size is not None:
            return False
        leaves = jax.tree.leaves(observation)
        shapes = [leaf.shape for leaf in jax.tree.leaves(specs.struct(self.env_spec.observation))]
        return bool(leaves) and np.shape(leaves[0]) == shapes[0]

    def _act(
        self, observation: Nest, reward: Any, given: Nest, for_environment: bool = False
    ) -> tuple[Nest, Any]:
        """Returns the action, and the agent's extras, both without B for one observation.

        Args:
          observation, reward: see `in_pool`.
          given: see `act`.
          for_environment: return the action as the environment takes it, not as a pool does.
        """
        with own_settings():
            return self._infer(observation, reward, given, for_environment)

    def _infer(
        self, observation: Nest, reward: Any, given: Nest, for_environment: bool
    ) -> tuple[Nest, Any]:
        is_given, starts = given is not None, self.env_spec.action_start
        if is_given:
            given = specs.converted(given, self.env_spec.action)
        observation = specs.converted(observation, self.env_spec.observation)
        single = self._is_single(observation)
        if single:
            observation, given = jax.tree.map(lambda x: np.asarray(x)[None], (observation, given))
        size = specs.batch_size(observation, self.env_spec.observation, "observation")
        if size != self._size and self.batch_size is None:
            self._begin(size)
        if is_given:
            specs.check(given, specs.struct(self.env_spec.action), (self._size,), "action")
            specs.check_integers(given, self.env_spec.action, starts, "action")
        else:
            given = specs.zeros(self.env_spec.action, self._size)
        struct = specs.struct(self.env_spec.observation)
        specs.check(observation, struct, (self._size,), "observation")
        specs.check_choices(observation, self.env_spec.observation)
        first, rewards = self._first, specs.zeros(self.env_spec.reward, self._size)
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
            env_id=self._streams,
            env_info=(given, np.asarray(is_given)),
        )
        (action, extras), _, _ = self._inferencer.infer_encoded(timestep, self._size, 0, False)
        self._prev_action = action
        self._first = np.zeros(self._size, bool)
        if for_environment:
            action = self._clip(action, self._size)
        if single:
            action, extras = jax.tree.map(lambda leaf: leaf[0], (action, extras))
        return specs.raised(action, starts if for_environment else None, 1), extras


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
      which: "latest" or "best" (see `Checkpoints.best`) of a run folder's checkpoints.
      batch_size: number of environments to act in at once; None: as many as each call has
        observations.
      greedy: choose the best action or the mode; otherwise sample, as actors do.
      seed: seed of the samples.
      trust: run the code that is saved with an agent or a transform of the user's own. Set it only
        for a run of yours, or of someone who may run programs as you.

    Raises:
      ConfigError: there is no complete checkpoint, or it has code and `trust` is not set.
      SpecError: the parameters are not the agent's, or lack its statistics.
    """
    with own_settings():
        saved = load_saved(path, which, trust=trust)
    return Policy(*saved, batch_size=batch_size, greedy=greedy, seed=seed)


class SavedAgent(NamedTuple):
    """An agent of a checkpoint, with its parameters."""

    agent: Agent
    version: int
    params: Params


def find_saved(path: str | Path, which: str, caller: str) -> Checkpoint:
    """Returns the checkpoint that `load_policy` would load. Args: caller: name for messages.

    Raises:
      ConfigError: there is no complete checkpoint.
    """
    if which not in ("latest", "best"):
        raise ConfigError(f"{caller}: which must be 'latest' or 'best', got {which!r}")
    path = Path(path)
    if (path / MANIFEST).exists():
        checkpoint: Checkpoint | None = Checkpoint.read(path, POLICY_FILES)
    elif which == "best":
        checkpoint = Checkpoints(path).best(POLICY_FILES)
        if checkpoint is None and Checkpoints(path).paths():
            what = f"{caller}: no checkpoint of {path} has a return to be the best by"
            raise ConfigError(f"{what}, of an evaluation or its own episodes; take which='latest'")
    else:
        checkpoint = Checkpoints(path).latest(only=POLICY_FILES)
    if checkpoint is None:
        tasks = path / TASKS
        policies = sorted(each.name for each in tasks.iterdir()) if tasks.is_dir() else []
        hint = ""
        if policies:
            hint = f"; it has several policies: name one, such as {tasks / policies[0]}"
        raise ConfigError(f"{caller}: {path} is not a checkpoint, and has none{hint}")
    return checkpoint


def settings_of(checkpoint: Checkpoint, trust: bool) -> dict[str, Any]:
    """Returns "agent", "transforms" and "env_spec" of a checkpoint. Raises: see `load_policy`."""
    name = SETTINGS if SETTINGS in checkpoint.manifest["files"] else PICKLE
    programs = checkpoint.manifest.get("programs") or {}
    return read_settings(checkpoint.path / name, trust, str(programs.get("python", "")))


def load_saved(
    path: str | Path, which: str = "latest", *, trust: bool = False, caller: str = "load_policy"
) -> SavedAgent:
    """Loads the agent and parameters of a checkpoint. Args, raises: see `load_policy`."""
    return load_agent(find_saved(path, which, caller), trust)


def load_agent(checkpoint: Checkpoint, trust: bool) -> SavedAgent:
    """Loads agent and parameters of a checkpoint whose files were checked. Raises: as above."""
    settings = settings_of(checkpoint, trust)
    config = settings["agent"]
    if hasattr(algorithm(config), "evaluation_epsilon"):
        config = with_settings(config, evaluation_epsilon=0.0)
    agent = make_agent(config, settings["transforms"], settings["env_spec"])
    version, params = load_params(checkpoint.path / PARAMS, params_struct(agent))
    return SavedAgent(agent, version, params)
