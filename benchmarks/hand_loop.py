"""The baseline: acts, steps and updates in one hand-written loop without any transport.

It does the environment steps, inferences and updates of an experiment's preset with the agent's
functions under plain `jax.jit`, EnvPool's own interface and NumPy arrays, and nothing of distrl in
between.

  python benchmarks/hand_loop.py --seconds=6 --core=0
  python benchmarks/hand_loop.py --seconds=6 --env=HalfCheetah-v4 --agent=ppo --core=0
"""

import argparse
import os
import time
from typing import Any


def main() -> None:
    """Prints the environment steps trained on per second, and when the first update was done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--agent", default="impala")
    parser.add_argument("--core", type=int, default=-1, help="-1: all")
    parser.add_argument("--bare", action="store_true", help="only step EnvPool, on all cores")
    parser.add_argument("--num_envs", type=int, default=0, help="of --bare; 0: the preset's")
    args = parser.parse_args()
    if args.core >= 0:
        os.sched_setaffinity(0, {args.core})
    if args.bare:
        rate, first_update = bare(args.env, args.agent, args.seconds, args.num_envs)
    else:
        rate, first_update = loop(args.env, args.agent, args.seconds)
    print(f"first update after {first_update:.1f} s")
    print(f"{rate:.0f}")


def environments(experiment: Any, num_envs: int) -> Any:
    """Returns EnvPool's own interface to an experiment's environments, with our threads."""
    import envpool

    from distrl.envs.pool import on_cores

    environment: Any = on_cores(experiment.environment, len(os.sched_getaffinity(0)))
    return envpool.make(
        environment.name, env_type="gymnasium", num_envs=num_envs,
        num_threads=environment.num_threads, **dict(environment.options),
    )  # fmt: skip


def bare(env_name: str, agent_name: str, seconds: float, num_envs: int) -> tuple[float, float]:
    """As `loop`, but steps the environments with one random action, and does nothing else.

    Args:
      num_envs: how many; 0: as many as the preset has.
    """
    began = time.monotonic()
    import numpy as np

    from distrl import presets

    experiment = presets.experiment(env_name, agent_name)
    num_envs = num_envs or experiment.actors.num_streams
    env = environments(experiment, num_envs)
    env.reset()
    action = np.stack([env.action_space.sample()] * num_envs)
    steps, measured = 0, None
    first = time.monotonic()
    while measured is None or time.monotonic() - measured < seconds:
        info = env.step(action)[4]
        steps += int(np.count_nonzero(info["elapsed_step"]))
        if measured is None and time.monotonic() - first >= 2.0:
            measured, steps = time.monotonic(), 0
    return steps / (time.monotonic() - measured), first - began


def loop(env_name: str, agent_name: str, seconds: float) -> tuple[float, float]:
    """Returns the environment steps trained on per second, and the seconds until the first update.

    Args:
      seconds: how long to measure, after the first update and a warm-up of two seconds.
    """
    began = time.monotonic()
    import jax
    import numpy as np

    jax.config.update("jax_cpu_enable_async_dispatch", False)

    from distrl import presets
    from distrl.types import StepType, TimeStep, Trajectory

    experiment = presets.experiment(env_name, agent_name)
    agent, n = experiment.make_agent(), experiment.actors.num_streams
    unroll = experiment.replay.unroll_length
    size = experiment.learner.batch_size
    assert n % size == 0, "the unrolls of all streams make whole batches"
    params = agent.initial_params(jax.random.PRNGKey(0))
    # Copies, as some of them share memory at first: all of it is donated.
    learner_state = jax.tree.map(jax.numpy.copy, agent.initial_learner_state(params))
    key = jax.random.PRNGKey(1)
    initial = agent.initial_state(1)

    @jax.jit
    def act(params: Any, key: Any, count: Any, timestep: Any, state: Any) -> Any:
        first = timestep.step_type == StepType.FIRST
        state = jax.tree.map(
            lambda new, old: jax.numpy.where(first.reshape(-1, *[1] * (old.ndim - 1)), new, old),
            initial,
            state,
        )
        output, after = agent.actor_step(jax.random.fold_in(key, count), params, timestep, state)
        return output, state, after

    update = jax.jit(agent.learner_step, donate_argnums=(0, 1))
    env = environments(experiment, n)
    space, observation_space = env.action_space, env.observation_space
    rows = unroll + 1
    dtype = np.uint8 if observation_space.dtype == np.uint8 else np.float32
    observations = np.zeros((rows, n, *observation_space.shape), dtype)
    rewards = np.zeros((rows, n), np.float32)
    discounts = np.ones((rows, n), np.float32)
    step_types = np.zeros((rows, n), np.int8)
    discrete = hasattr(space, "n")
    actions = np.zeros((rows, n, *space.shape), np.int32 if discrete else np.float32)
    log_probs = np.zeros((rows, n), np.float32)
    versions = np.zeros((rows, n), np.int32)
    ids, ones = np.arange(n, dtype=np.int32), np.ones(n, np.float32)
    state = agent.initial_state(n)
    observation, _ = env.reset()
    reward, discount, step_type = ones * 0, ones, np.zeros(n, np.int8)
    last_action = actions[0].copy()
    count = steps = 0
    measured, first_update = None, 0.0
    while measured is None or time.monotonic() - measured < seconds:
        for t in range(rows):
            # The last row of an unroll is the first of the next, which acts on it.
            observations[t], rewards[t] = observation, reward
            discounts[t], step_types[t] = discount, step_type
            if t == unroll:
                break
            count += 1
            timestep = TimeStep(step_type, reward, discount, observations[t], last_action, ids)
            output, before, state = act(params, key, count, timestep, state)
            if t == 0:
                first_state = before
            last_action = np.asarray(output.action)
            actions[t], log_probs[t] = last_action, output.extras["log_prob"]
            sent = last_action if discrete else np.clip(last_action, space.low, space.high)
            observation, reward, terminated, truncated, info = env.step(sent)
            done = terminated | truncated
            discount = 1.0 - (terminated & ~truncated).astype(np.float32)
            step_type = np.where(info["elapsed_step"] == 0, 0, 1 + done).astype(np.int8)
        for part in (slice(at, at + size) for at in range(0, n, size)):
            steps_of = (step_types, rewards, discounts, observations, actions)
            batch = Trajectory(
                TimeStep(*(field[:, part] for field in steps_of)), actions[:, part],
                {"log_prob": log_probs[:, part]}, versions[:, part],
                jax.tree.map(lambda x, part=part: x[part], first_state),
                ids[part], ids[part], ones[part],
            )  # fmt: skip
            params, learner_state, _ = update(params, learner_state, batch)
        jax.block_until_ready(params)
        steps += int(np.count_nonzero(step_types[:-1] != 2))
        if not first_update:
            first_update = time.monotonic()
        if measured is None and time.monotonic() - first_update >= 2.0:
            measured, steps = time.monotonic(), 0
    return steps / (time.monotonic() - measured), first_update - began


if __name__ == "__main__":
    main()
