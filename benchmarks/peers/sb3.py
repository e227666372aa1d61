"""Trains PPO or SAC of Stable-Baselines3 with our presets' settings, and prints what it took.

"pixels" is PPO with one pass over 16 x 20 steps of EnvPool's environments, in batches of 80, on all
cores: the work of our IMPALA's preset for Atari.

In an environment of its own (Python 3.11, which `requirements.txt` beside this file pins):

  python -m venv .venv-peers && .venv-peers/bin/pip install -r benchmarks/peers/requirements.txt
  taskset -c 1 .venv-peers/bin/python benchmarks/peers/sb3.py ppo HalfCheetah-v4 1000000 --seed=0
  .venv-peers/bin/python benchmarks/peers/sb3.py pixels Pong-v5 10000

Prints a line of JSON: seconds of wall time from the first import on, with those of `learn` alone,
environment steps, those a second after the first batch, and the mean return of the last 100
training episodes. One process and, but for "pixels", one thread.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

BEGAN = time.monotonic()  # before the imports, which take seconds

import gymnasium  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from stable_baselines3 import PPO, SAC  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.monitor import Monitor  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize  # noqa: E402


def make_env(name: str, seed: int) -> Callable[[], Any]:
    """Returns a function that makes an environment, which counts its returns."""

    def make() -> Any:
        env = Monitor(gymnasium.make(name))
        env.reset(seed=seed)
        return env

    return make


def ppo(name: str, steps: int, seed: int) -> tuple[Any, Any]:
    """Returns the model and its environments: batches of 8 x 256 steps, as our preset has."""
    monitored = DummyVecEnv([make_env(name, seed + number) for number in range(8)])
    model = PPO(
        "MlpPolicy",
        VecNormalize(monitored),
        n_steps=256,
        batch_size=64,
        n_epochs=10,
        learning_rate=lambda left: 3e-4 * left,
        seed=seed,
        device="cpu",
    )
    return model, monitored


class EnvPoolVecEnv(VecEnv):
    """EnvPool's environments for Stable-Baselines3; whoever ends is reset by the next step."""

    def __init__(self, name: str, num_envs: int, seed: int):
        import envpool

        self._env = envpool.make(name, env_type="gymnasium", num_envs=num_envs, seed=seed)
        spaces = self._env.observation_space, self._env.action_space
        super().__init__(num_envs, *spaces)
        self.envs: list[Any] = []

    def reset(self) -> Any:
        return self._env.reset()[0]

    def step_async(self, actions: Any) -> None:
        self._actions = actions.astype(np.int32)

    def step_wait(self) -> Any:
        observation, reward, terminated, truncated, _ = self._env.step(self._actions)
        return observation, reward, terminated | truncated, [{} for _ in range(self.num_envs)]

    def close(self) -> None:
        pass

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError("EnvPool's environments have no attributes")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> Any:
        raise NotImplementedError("EnvPool's environments have no methods")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


def pixels(name: str, steps: int, seed: int) -> tuple[Any, Any]:
    """Returns the model and its environments: one pass over 16 x 20 steps in batches of 80."""
    envs = EnvPoolVecEnv(name, 16, seed)
    model = PPO("CnnPolicy", envs, n_steps=20, batch_size=80, n_epochs=1, seed=seed, device="cpu")
    return model, envs


class FirstBatch(BaseCallback):
    """Notes when the second batch begins, that is, when the first update is done."""

    seconds: float | None = None
    steps = 0

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps and self.seconds is None:
            self.seconds, self.steps = time.monotonic(), self.num_timesteps


def sac(name: str, steps: int, seed: int) -> tuple[Any, Any]:
    """Returns the model and its environment: one update of 256 transitions for each step."""
    monitored = DummyVecEnv([make_env(name, seed)])
    model = SAC("MlpPolicy", monitored, learning_starts=1_000, seed=seed, device="cpu")
    return model, monitored


def main() -> None:
    """Trains, and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("agent", choices=("ppo", "sac", "pixels"))
    parser.add_argument("env")
    parser.add_argument("steps", type=int)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.agent != "pixels":
        torch.set_num_threads(1)
    model, monitored = {"ppo": ppo, "sac": sac, "pixels": pixels}[args.agent](
        args.env, args.steps, args.seed
    )
    learning = time.monotonic()
    first = FirstBatch()
    model.learn(args.steps, callback=first)
    ended = time.monotonic()
    began = first.seconds or learning
    ends = [
        (start, value)
        for env in monitored.envs
        for start, value in zip(np.cumsum(env.episode_lengths), env.get_episode_rewards())
    ]
    returns = [value for _, value in sorted(ends)][-100:]
    print(
        json.dumps(
            {
                "agent": args.agent,
                "env": args.env,
                "seed": args.seed,
                "steps": model.num_timesteps,
                "seconds": round(ended - BEGAN, 1),
                "learning_seconds": round(ended - learning, 1),
                "first_update": round(began - BEGAN, 1),
                "steps_per_second": round((model.num_timesteps - first.steps) / (ended - began), 1),
                "return": round(float(np.mean(returns)), 1) if returns else None,
            }
        )
    )


if __name__ == "__main__":
    main()
