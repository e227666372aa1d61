"""Finds which part of a program limits its speed, and what more of a part would gain.

The program is a closed queueing network: each actor cycles from a step of its environments through
inference to the table, and the learner empties the table. Its throughput is at most that of its
slowest part (Denning and Buzen, "The operational analysis of queueing network models", 1978,
section 5), and a part's own throughput follows from the share of time in which it works.
"""

from collections.abc import Mapping
from typing import NamedTuple

ENVIRONMENTS, INFERENCE, WRITES = "environments", "inference", "replay writes"
SAMPLING, LEARNER, OTHER = "sampling", "learner", "callbacks, saving and reports"
ACTOR_NODES, INFERENCER_NODES, LEARNER_NODES = "actor", "inferencer", "learner"
SINGLE_PROCESS = "single_process"
_SPEED_UP = 2.0  # the gain of a learner is predicted for updates faster by this factor
_LEAST_CORE = 0.5  # with fewer idle cores than this, another node would find none
_LEAST_SECONDS = 3.0  # least time to take shares over; a few updates say nothing
_LEAST = 1e-3  # share below which a part is as good as never busy


class Group(NamedTuple):
    """What the nodes of a group did, on average.

    Attributes:
      size: number of nodes.
      shares: shares of their time by state; they add up to 1. See `distrl.runtime.time_account`.
      requests: for inferencers, the mean number of requests in a batch.
      growth: for inferencers, the share by which a batch's time grows with twice the rows: 0 means
        that it does not depend on them, 1 that it is proportional to them.
      seconds: the time that the shares are taken over, on average.
    """

    size: int
    shares: Mapping[str, float]
    requests: float = 1.0
    growth: float = 1.0
    seconds: float = float("inf")

    def share(self, *states: str) -> float:
        """Returns the share of some states together."""
        return sum(self.shares.get(state, 0.0) for state in states)


class BottleneckVerdict(NamedTuple):
    """The bottleneck of a program.

    Attributes:
      bottleneck: ENVIRONMENTS, INFERENCE, WRITES, SAMPLING, LEARNER or OTHER.
      gains: the shares by which environment steps per second would rise with one more "actor",
        one more "inferencer", and a "learner" that makes updates twice as fast; without groups that
        do not exist. In one process, "actor" is a separate process for acting.
      sentence: both, in words.
    """

    bottleneck: str
    gains: dict[str, float]
    sentence: str


def find_bottleneck(
    groups: Mapping[str, Group], coupled: bool = True, idle_cores: float | None = None
) -> BottleneckVerdict | None:
    """Returns the bottleneck; None while too little is known.

    Args:
      groups: "actor", "learner" and perhaps "inferencer", or "single_process" alone.
      coupled: whether acting and learning wait for each other, as with a queue or a ratio of
        samples to inserts; otherwise the learner does not limit the environment steps.
      idle_cores: how many usable cores are idle; None: not known. Gains assume that a further node
        gets a core of its own, and the sentence says so if there is none.
    """
    no_core = idle_cores is not None and idle_cores < _LEAST_CORE
    core = " with another core" if no_core else ""
    if SINGLE_PROCESS in groups:
        one = groups[SINGLE_PROCESS]
        return _of_one_process(one, core) if one.seconds >= _LEAST_SECONDS else None
    if ACTOR_NODES not in groups or LEARNER_NODES not in groups:
        return None
    actor, learner = groups[ACTOR_NODES], groups[LEARNER_NODES]
    if min(actor.seconds, learner.seconds) < _LEAST_SECONDS:
        return None
    inferencer = groups.get(INFERENCER_NODES)
    blocked = actor.share("insert_wait", "parameter_wait") if coupled else 0.0
    starved = learner.share("sample_wait")
    gains = _gains(actor, learner, inferencer, blocked, starved, coupled)
    acting = {
        ENVIRONMENTS: actor.share("env_step"),
        INFERENCE: actor.share("inference", "inference_wait"),
        WRITES: actor.share("replay_write"),
    }
    learning = {
        SAMPLING: learner.share("sampling"),
        LEARNER: learner.share("transfer", "compute", "publish"),
        OTHER: learner.share("other"),
    }
    if coupled and starved < blocked:
        bottleneck = max(learning, key=learning.__getitem__)
        facts = (
            f"{_percent(learning[bottleneck])} of the learner's time, which waits for samples "
            f"{_percent(starved)}; the actors wait for it {_percent(blocked)} of theirs"
        )
    else:
        bottleneck = max(acting, key=acting.__getitem__)
        facts = f"{_percent(acting[bottleneck])} of the actors' time"
        if inferencer is not None and bottleneck == INFERENCE:
            facts += f", and the inferencers are busy {_percent(1 - inferencer.share('idle'))}"
        facts += f"; the learner waits for samples {_percent(starved)} of its time"
    return BottleneckVerdict(
        bottleneck, gains, f"bottleneck: {bottleneck} ({facts}). {_text(gains, core)}"
    )


def _gains(
    actor: Group,
    learner: Group,
    inferencer: Group | None,
    blocked: float,
    starved: float,
    coupled: bool,
) -> dict[str, float]:
    """Returns `BottleneckVerdict.gains`. The factors below apply to the present throughput."""
    by_learner = _over(1 - starved) if coupled else float("inf")
    free = _over(1 - blocked)  # with the present actors, if none waited for the learner
    more = (actor.size + 1) / actor.size
    by_service = float("inf")
    gains = {}
    if inferencer is not None:
        busy = 1 - inferencer.share("idle")
        batch = inferencer.requests
        # A batch is what has arrived while the previous one ran: half of the actors, if they wait
        # for nothing else.
        fuller = max(batch, (actor.size + 1) / (2 * inferencer.size)) / batch
        by_service = fuller / (1 + inferencer.growth * (fuller - 1)) * _over(busy)
        served = busy * inferencer.size * batch / actor.size  # share of an actor's time
        # The rest of the wait is latency, unless others' batches run.
        queued = max(0.0, min(actor.share("inference_wait"), busy) - served)
        servers = (inferencer.size + 1) / inferencer.size
        gains[INFERENCER_NODES] = min(free * _over(1 - queued), by_learner, servers * _over(busy))
    gains[ACTOR_NODES] = min(more * free, by_learner, by_service)
    other = learner.share("other")  # a faster learner spends it as well
    faster = other + (1 - starved - other) / _SPEED_UP
    gains[LEARNER_NODES] = min(free, _over(faster)) if coupled else 1.0
    order = (ACTOR_NODES, INFERENCER_NODES, LEARNER_NODES)
    return {name: max(0.0, gains[name] - 1) for name in order if name in gains}


def _of_one_process(group: Group, core: str) -> BottleneckVerdict | None:
    acting_parts = {
        ENVIRONMENTS: group.share("env_step"),
        INFERENCE: group.share("inference", "inference_wait"),
        WRITES: group.share("replay_write", "insert_wait"),
    }
    learning_parts = {
        SAMPLING: group.share("sampling", "sample_wait"),
        LEARNER: group.share("transfer", "compute", "publish", "parameter_wait"),
    }
    acting, learning = sum(acting_parts.values()), sum(learning_parts.values())
    other = group.share("other")  # the process that learns continues to spend it
    if acting + learning < _LEAST:
        return None
    sides = acting_parts, learning_parts, {OTHER: other}
    parts = max(sides, key=lambda side: sum(side.values()))
    bottleneck = max(parts, key=parts.__getitem__)
    total = acting + learning + other
    saved = learning_parts[LEARNER] * (1 - 1 / _SPEED_UP)
    gains = {
        ACTOR_NODES: total * _over(max(acting, learning + other)) - 1,
        LEARNER_NODES: total * _over(total - saved) - 1,
    }
    included = ", with evaluation" if bottleneck == OTHER else ""
    return BottleneckVerdict(
        bottleneck,
        gains,
        f"bottleneck: {bottleneck} ({_percent(parts[bottleneck])} of the time{included}; acting "
        f"takes {_percent(acting)}, learning {_percent(learning)}). "
        + _text(gains, core, "An actor with a process of its own"),
    )


def _over(share: float) -> float:
    return 1 / max(share, _LEAST)


def _text(gains: Mapping[str, float], core: str, actor: str = "One more actor") -> str:
    """Returns the gains in words. Args: core: what a further node needs and does not have."""
    names = {
        ACTOR_NODES: actor,
        INFERENCER_NODES: "one more inferencer",
        LEARNER_NODES: "a learner twice as fast",
    }
    return "; ".join(
        f"{names[name]}: {_gain(gain)}{'' if name == LEARNER_NODES else core}"
        for name, gain in gains.items()
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _gain(gain: float) -> str:
    return f"{100 * gain:+.0f} % steps/s"
