"""Experiments by name: an environment and an algorithm with settings that suit them.

An environment of your own may be given instead of a name.
"""

import dataclasses

from distrl.agents.a2c import A2CConfig
from distrl.agents.ddpg import DDPGConfig
from distrl.agents.defaults import FRAMES, AlgorithmConfig, is_discrete
from distrl.agents.dqn import DQNConfig
from distrl.agents.impala import IMPALAConfig
from distrl.agents.ppo import PPOConfig
from distrl.agents.r2d2 import R2D2Config
from distrl.agents.reinforce import ReinforceConfig
from distrl.agents.sac import SACConfig
from distrl.agents.td3 import TD3Config
from distrl.envs import suites
from distrl.envs.multi_agent.environment import SeveralAgents
from distrl.envs.native import NativeEnvironment
from distrl.envs.pool import Environment
from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.experiment_checks import check_environment
from distrl.field_checks import choose_from
from distrl.transforms import FrameStack, by_name

AGENTS: dict[str, type[AlgorithmConfig]] = {
    "a2c": A2CConfig,
    "ddpg": DDPGConfig,
    "dqn": DQNConfig,
    "impala": IMPALAConfig,
    "ppo": PPOConfig,
    "r2d2": R2D2Config,
    "reinforce": ReinforceConfig,
    "sac": SACConfig,
    "td3": TD3Config,
}


def check_agent(agent: str | None) -> None:
    """Raises ConfigError for a name that is not in AGENTS. Args: agent: None means the default."""
    if agent is None:
        return
    if not isinstance(agent, str):
        name = getattr(agent, "__name__", f"{type(agent).__name__}(...)")
        raise ConfigError(
            f"agent: expected a name, such as 'ppo', got {name}; with an algorithm's settings "
            "write Experiment(environment, PPOConfig(...))"
        )
    if agent not in AGENTS:
        raise ConfigError(f"agent: no {agent!r}{choose_from(agent, sorted(AGENTS))}")


def experiment(env: str | Environment, agent: str | None = None, seed: int = 0) -> Experiment:
    """Returns the experiment that `distrl train --env=... --agent=...` trains.

    The algorithm's settings and the transforms suit the environment's observations and actions.
    EnvPool's Atari, given by name, has single frames, of which the transform `frame_stack` makes
    stacks, so that each is stored once; and, but for R2D2 as in its paper, a discount of 0 where a
    life is lost (Mnih et al. 2015). Scores and episodes stay the game's.

    Args:
      env: environment name, as `distrl.envs.make` takes it, or an environment, which is left as
        it is.
      agent: a key of AGENTS; None: "impala", or "ppo" for continuous actions.
      seed: root of the run's seeds.

    Raises:
      ConfigError: there is no such environment or agent; the message has near matches. Or `env`
        is neither a name nor an environment, or `agent` is no name.
    """
    check_agent(agent)
    environment = suites.make(env) if isinstance(env, str) else env
    check_environment("environment", environment)
    frames: tuple[FrameStack, ...] = ()
    from_name = environment is not env
    if from_name and isinstance(environment, NativeEnvironment) and environment.is_atari:
        life_loss = ("zero_discount_on_life_loss", agent != "r2d2")
        environment = dataclasses.replace(environment, options=(("stack_num", 1), life_loss))
        frames = (FrameStack(FRAMES),)
    env_spec = environment.spec()
    if isinstance(environment, SeveralAgents):  # one policy for all of its agents
        env_spec = next(iter(environment.agents().agents.values()))
    if agent is None:
        agent = "impala" if is_discrete(env_spec) else "ppo"
    config = AGENTS[agent].preset(env_spec)
    transforms = by_name(config.defaults(env_spec).transforms)
    return Experiment(environment, config, transforms=(*transforms, *frames), seed=seed)
