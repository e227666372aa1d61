"""Trains PPO or SAC of Stable-Baselines3 with the settings of our presets, and prints what it took.

In an environment of its own (Python 3.11, which `requirements.txt` beside this file pins):

  python -m venv .venv-peers && .venv-peers/bin/pip install -r benchmarks/peers/requirements.txt
  taskset -c 1 .venv-peers/bin/python benchmarks/peers/sb3.py ppo HalfCheetah-v4 1000000 --seed=0

Prints a line of JSON: seconds of wall time from the first import on, with those of `learn` alone,
environment steps, and the mean return of the last 100 training episodes. One thread, one process.
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
from stable_baselines3.common.monitor import Monitor  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize  # noqa: E402


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
    parser.add_argument("agent", choices=("ppo", "sac"))
    parser.add_argument("env")
    parser.add_argument("steps", type=int)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, monitored = {"ppo": ppo, "sac": sac}[args.agent](args.env, args.steps, args.seed)
    learning = time.monotonic()
    model.learn(args.steps)
    ended = time.monotonic()
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
                "return": round(float(np.mean(returns)), 1),
            }
        )
    )


if __name__ == "__main__":
    main()
