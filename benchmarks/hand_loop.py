"""The baseline: acts, steps and updates in one hand-written loop without any transport.

It does the environment steps, inferences and updates of an experiment with the agent's functions,
EnvPool's own interface and NumPy arrays, and nothing of distrl in between.

  python benchmarks/hand_loop.py --seconds=6 --num_envs=64 --core=0
"""

import argparse
import os
import time


def main() -> None:
    """Prints the environment steps trained on per second."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--num_envs", type=int, default=64)
    parser.add_argument("--unroll", type=int, default=20)
    parser.add_argument("--core", type=int, default=0, help="-1: not pinned")
    args = parser.parse_args()
    if args.core >= 0:
        os.sched_setaffinity(0, {args.core})
    print(f"{loop(args.seconds, args.num_envs, args.unroll):.0f}")


def loop(seconds: float, num_envs: int, unroll: int) -> float:
    """Returns the environment steps trained on per second, after a warm-up of two seconds."""
    import jax
    import numpy as np

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    import envpool

    from distrl import presets
    from distrl.types import TimeStep, Trajectory

    agent = presets.experiment("CartPole-v1").make_agent()
    params = agent.initial_params(jax.random.PRNGKey(0))
    learner_state = agent.initial_learner_state(params)
    key = jax.random.PRNGKey(1)

    @jax.jit
    def act(params, key, count, timestep):
        return agent.actor_step(jax.random.fold_in(key, count), params, timestep, ())[0]

    update = jax.jit(agent.learner_step)
    env = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=num_envs, num_threads=1)
    rows, n = unroll + 1, num_envs
    observations = np.zeros((rows, n, 4), np.float32)
    rewards = np.zeros((rows, n), np.float32)
    discounts = np.ones((rows, n), np.float32)
    step_types = np.zeros((rows, n), np.int8)
    actions = np.zeros((rows, n), np.int32)
    log_probs = np.zeros((rows, n), np.float32)
    versions = np.zeros((rows, n), np.int32)
    ids, ones = np.arange(n, dtype=np.int32), np.ones(n, np.float32)
    observation, _ = env.reset()
    reward, discount, step_type = ones * 0, ones, np.zeros(n, np.int8)
    count = steps = 0
    began = measured = time.monotonic()
    warm = False
    while time.monotonic() - began < seconds + 2.0:
        for t in range(rows):
            # The last row of an unroll is the first of the next, which acts on it.
            observations[t], rewards[t] = observation, reward
            discounts[t], step_types[t] = discount, step_type
            if t == unroll:
                break
            count += 1
            output = act(params, key, count, TimeStep(step_type, reward, discount, observation, ()))
            action = np.asarray(output.action)
            actions[t], log_probs[t] = action, output.extras["log_prob"]
            observation, reward, terminated, truncated, info = env.step(action)
            done = terminated | truncated
            discount = 1.0 - (terminated & ~truncated).astype(np.float32)
            step_type = np.where(info["elapsed_step"] == 0, 0, 1 + done).astype(np.int8)
        batch = Trajectory(
            TimeStep(step_types, rewards, discounts, observations, actions),
            actions, {"log_prob": log_probs}, versions, (), ids, ids, ones,
        )  # fmt: skip
        params, learner_state, _ = update(params, learner_state, batch)
        jax.block_until_ready(params)
        steps += int(np.count_nonzero(step_types[:-1] != 2))
        if not warm and time.monotonic() - began >= 2.0:
            warm, measured, steps = True, time.monotonic(), 0
    return steps / (time.monotonic() - measured)


if __name__ == "__main__":
    main()
