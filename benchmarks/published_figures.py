"""What others have published about the tasks of `learning_tasks.py`.

The figures were read at the addresses beside them. Each says what it is a mean of, because
that differs: CleanRL's are of the last training episodes of three seeds, with the standard
deviation over seeds; rl-baselines3-zoo's of many episodes of one trained policy, without
exploration, with the standard deviation over episodes.
"""

from typing import NamedTuple


class Source(NamedTuple):
    """Where figures were published, and what they are."""

    name: str
    address: str
    what: str


class Figure(NamedTuple):
    """A published figure."""

    source: Source
    env: str
    agent: str
    mean: float
    std: float
    steps: int


_CLEANRL = "https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/"
_TRAINING = "training episodes, mean and deviation of 3 seeds"


def _cleanrl(page: str) -> Source:
    return Source("CleanRL", f"{_CLEANRL}docs/{page}.md", _TRAINING)


ZOO = Source(
    "rl-baselines3-zoo",
    "https://github.com/DLR-RM/rl-baselines3-zoo/blob/22e3ff2450fd92033f7f032915e1f64894a09584/"
    "benchmark.md",
    "one policy without exploration (for Atari with it), mean and deviation of its episodes; its "
    "settings are tuned for each environment",
)

AUTHORS_OF_TD3 = Source(
    "Fujimoto et al. 2018",
    "https://github.com/sfujim/TD3/tree/34770ccdcb51df6f6c7d85c1ba7e40d71b940d16/learning_curves",
    "ten episodes without exploration at that step, mean and deviation of 10 seeds; with learning "
    "rates of 1e-3, batches of 100, and layers of 400 and 300",
)

BASELINES = Source(
    "OpenAI Baselines",
    "https://github.com/openai/baselines-results/blob/c54cdcc9fc34ca388a5a7e37f404808641bdb9cd/"
    "acktr_ppo_acer_a2c_atari.ipynb",
    "training episodes after 10 million frames, read off the curves of 3 seeds: the middle, and "
    "half of their range",
)

PUBLISHED = tuple(
    Figure(_cleanrl(page), env, agent, mean, std, steps)
    for page, agent, steps, rows in (
        ("benchmark/ppo", "ppo", 500_000, (
            ("CartPole-v1", 490.04, 6.12), ("Acrobot-v1", -86.36, 1.32),
            ("MountainCar-v0", -200.0, 0.0),
        )),
        ("benchmark/ppo_continuous_action", "ppo", 1_000_000, (
            ("HalfCheetah-v4", 1442.64, 46.03), ("Walker2d-v4", 2287.95, 571.78),
            ("Hopper-v4", 2382.86, 271.74), ("Humanoid-v4", 716.11, 49.08),
        )),
        ("benchmark/ppo_atari_envpool", "ppo", 10_000_000, (
            ("Pong-v5", 20.45, 0.09), ("Breakout-v5", 211.24, 151.84),
        )),
        ("rl-algorithms/dqn", "dqn", 500_000, (
            ("CartPole-v1", 488.69, 16.11), ("Acrobot-v1", -91.54, 7.20),
            ("MountainCar-v0", -194.95, 8.48),
        )),
        ("rl-algorithms/dqn", "dqn", 10_000_000, (
            ("PongNoFrameskip-v4", 20.25, 0.41), ("BreakoutNoFrameskip-v4", 366.928, 39.89),
        )),
        ("benchmark/sac", "sac", 1_000_000, (
            ("HalfCheetah-v4", 9634.89, 1423.73), ("Walker2d-v4", 3591.45, 911.33),
            ("Hopper-v4", 2310.46, 342.82),
        )),
        ("benchmark/td3", "td3", 1_000_000, (
            ("HalfCheetah-v4", 9583.22, 126.09), ("Walker2d-v4", 4057.59, 658.78),
            ("Hopper-v4", 3134.61, 360.18),
        )),
        ("benchmark/ddpg", "ddpg", 1_000_000, (
            ("HalfCheetah-v4", 10374.07, 157.37), ("Walker2d-v4", 1240.16, 390.10),
            ("Hopper-v4", 1576.78, 818.98),
        )),
    )
    for env, mean, std in rows
) + tuple(
    Figure(ZOO, env, agent, mean, std, steps)
    for agent, rows in (
        ("ppo", (
            ("CartPole-v1", 500.0, 0.0, 100_000), ("Acrobot-v1", -73.506, 18.201, 1_000_000),
            ("HalfCheetah-v3", 5819.099, 663.530, 1_000_000),
            ("Hopper-v3", 2410.435, 10.026, 1_000_000),
            ("Walker2d-v3", 3478.798, 821.708, 1_000_000),
            ("Ant-v3", 1327.158, 451.577, 1_000_000),
            ("LunarLander-v2", 242.119, 31.823, 1_000_000),
            ("BipedalWalker-v3", 287.939, 2.448, 5_000_000),
            ("Pendulum-v1", -172.225, 104.159, 100_000),
            ("MiniGrid-DoorKey-5x5-v0", 0.964, 0.006, 100_000),
            ("PongNoFrameskip-v4", 20.989, 0.105, 10_000_000),
            ("BreakoutNoFrameskip-v4", 398.033, 33.328, 10_000_000),
        )),
        ("a2c", (
            ("CartPole-v1", 500.0, 0.0, 500_000), ("Acrobot-v1", -83.353, 17.213, 500_000),
            ("HalfCheetah-v3", 3041.174, 157.265, 1_000_000),
            ("Hopper-v3", 733.454, 376.574, 1_000_000),
            ("Walker2d-v3", 581.835, 127.597, 1_000_000),
            ("LunarLander-v2", 155.751, 80.419, 200_000),
            ("Pendulum-v1", -162.965, 103.210, 1_000_000),
            ("PongNoFrameskip-v4", 17.292, 3.214, 10_000_000),
        )),
        ("dqn", (
            ("CartPole-v1", 500.0, 0.0, 50_000), ("Acrobot-v1", -76.639, 11.752, 100_000),
            ("LunarLander-v2", 154.382, 79.241, 100_000),
            ("MountainCar-v0", -100.849, 9.925, 120_000),
            ("PongNoFrameskip-v4", 20.602, 0.613, 10_000_000),
        )),
        ("sac", (
            ("Pendulum-v1", -156.995, 88.714, 20_000),
            ("HalfCheetah-v3", 9535.451, 100.470, 1_000_000),
            ("Hopper-v3", 2325.547, 1129.676, 1_000_000),
            ("Walker2d-v3", 3863.203, 254.347, 1_000_000),
        )),
        ("td3", (
            ("Pendulum-v1", -151.855, 90.227, 20_000),
            ("HalfCheetah-v3", 9655.666, 969.916, 1_000_000),
            ("Hopper-v3", 3606.390, 4.027, 1_000_000),
            ("Walker2d-v3", 4717.823, 46.303, 1_000_000),
        )),
        ("ddpg", (("Pendulum-v1", -152.099, 94.282, 20_000),)),
    )
    for env, mean, std, steps in rows
) + tuple(
    Figure(AUTHORS_OF_TD3, env, "td3", mean, std, 300_000)
    for env, mean, std in (
        ("HalfCheetah-v1", 7697.1, 727.4), ("Hopper-v1", 2410.3, 900.4),
        ("Walker2d-v1", 3335.5, 956.8),
    )
) + (Figure(BASELINES, "BreakoutNoFrameskip-v4", "ppo", 58.0, 9.0, 2_500_000),)  # fmt: skip

NOT_CHECKED = {
    "impala": "The paper's scores (Espeholt et al. 2018, 200M frames of Atari) were not checked.",
    "r2d2": "The paper's scores (Kapturowski et al. 2019, 10 billion frames of Atari) were not "
    "checked.",
}
"""Published figures that nobody has read at their source for these pages, by agent."""


def published(env: str, agent: str) -> list[Figure]:
    """Returns the published figures of an environment, older versions of it included."""
    stem = env.rpartition("-")[0]
    names = {env, stem + "-v1", stem + "-v3", stem + "NoFrameskip-v4"}
    return [figure for figure in PUBLISHED if figure.agent == agent and figure.env in names]
