"""The baseline of off-policy agents: acts, samples and updates in one hand-written loop.

It does the environment steps, inferences, samples and updates of an experiment with the agent's
functions, with their compiler options, EnvPool's own interface and a ring of NumPy arrays, and
nothing of distrl in between.

  python benchmarks/hand_off_policy.py --agent=sac --env=Pendulum-v1 --seconds=6 --core=0
"""

import argparse
import functools
import os
import time


def main() -> None:
    """Prints the updates per second."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agent", choices=("sac", "td3"), default="sac")
    parser.add_argument("--env", default="Pendulum-v1")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--core", type=int, default=0, help="-1: not pinned")
    args = parser.parse_args()
    if args.core >= 0:
        os.sched_setaffinity(0, {args.core})
    print(f"{loop(args.agent, args.env, args.seconds):.1f}")


def loop(agent_name: str, env_name: str, seconds: float) -> float:
    """Returns the updates per second, after the first one and a warm-up of two seconds."""
    import jax
    import numpy as np

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    import envpool

    from distrl import presets
    from distrl.agents.compiling import compiler_options
    from distrl.types import TimeStep, Trajectory

    experiment = presets.experiment(env_name, agent_name)
    agent, replay = experiment.make_agent(), experiment.replay
    assert replay.samples_per_insert is not None and replay.unroll_length == 1
    n, batch_size = experiment.actors.num_streams, experiment.learner.batch_size
    updates_per_transition = replay.samples_per_insert / batch_size
    params = agent.initial_params(jax.random.PRNGKey(0))
    # Copies, as some of them share memory at first: all of it is donated.
    learner_state = jax.tree.map(jax.numpy.copy, agent.initial_learner_state(params))
    key, rng = jax.random.PRNGKey(1), np.random.default_rng(0)

    options = compiler_options(agent)  # as distrl compiles them

    @functools.partial(jax.jit, compiler_options=options)
    def act(params, key, count, timestep):
        return agent.actor_step(jax.random.fold_in(key, count), params, timestep, ())[0].action

    update = jax.jit(agent.learner_step, donate_argnums=(0, 1), compiler_options=options)
    env = envpool.make(env_name, env_type="gymnasium", num_envs=n, num_threads=1)
    low, high = env.action_space.low, env.action_space.high
    # Rings of steps: row t has the step t of all environments, and the action that it was given.
    rows = replay.max_size // n + 1
    observations = np.zeros((rows, n, *env.observation_space.shape), np.float32)
    rewards = np.zeros((rows, n), np.float32)
    discounts = np.ones((rows, n), np.float32)
    step_types = np.zeros((rows, n), np.int8)
    actions = np.zeros((rows, n, *env.action_space.shape), np.float32)
    ids = np.arange(n, dtype=np.int32)
    two_rows = np.arange(2)[:, None]
    zeros = np.zeros(batch_size, np.int32)
    versions = np.zeros((2, batch_size), np.int32)
    probability = np.full(batch_size, 1e-3, np.float32)
    observation, _ = env.reset()
    step_type, discount = np.zeros(n, np.int8), np.ones(n, np.float32)
    reward = np.zeros(n, np.float32)
    steps = updates = 0
    due = 0.0
    measured = warm_at = None
    while measured is None or time.monotonic() - measured < seconds:
        row = steps % rows
        observation = observation.astype(np.float32)
        observations[row], rewards[row] = observation, reward
        discounts[row], step_types[row] = discount, step_type
        timestep = TimeStep(step_type, reward, discount, observation, actions[row - 1], ids)
        action = np.asarray(act(params, key, steps, timestep))
        actions[row] = action
        observation, reward, terminated, truncated, info = env.step(np.clip(action, low, high))
        reward = reward.astype(np.float32)
        done = terminated | truncated
        discount = 1.0 - (terminated & ~truncated).astype(np.float32)
        step_type = np.where(info["elapsed_step"] == 0, 0, 1 + done).astype(np.int8)
        steps += 1
        if (steps - 1) * n < replay.min_size_to_sample:
            continue
        due += n * updates_per_transition
        while due >= 1.0:
            due -= 1.0
            size = min(steps, rows)
            # A transition's second row must have been written after the first.
            first = steps - size + rng.integers(size - 1, size=batch_size)
            at = (first + two_rows) % rows, rng.integers(n, size=batch_size)
            batch_actions = actions[at]
            batch = Trajectory(
                TimeStep(
                    step_types[at], rewards[at], discounts[at], observations[at], batch_actions
                ),
                batch_actions, (), versions, (), zeros, zeros, probability,
            )  # fmt: skip
            params, learner_state, _ = update(params, learner_state, batch)
            jax.block_until_ready(params)
            updates += 1
        if warm_at is None:
            warm_at = time.monotonic() + 2.0
        if measured is None and time.monotonic() >= warm_at:
            measured, updates = time.monotonic(), 0
    return updates / (time.monotonic() - measured)


if __name__ == "__main__":
    main()
