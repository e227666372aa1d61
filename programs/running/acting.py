"""The actor of an experiment, of one policy or of several."""

from collections.abc import Mapping

from distrl.actor import Actor, ActorLoop
from distrl.envs.multi_agent.environment import SeveralAgents
from distrl.envs.pool import Pool
from distrl.inferencer import InferenceSource
from distrl.multi_agent.actor import MultiAgentActor
from distrl.multi_agent.policy_checks import stores_extras
from distrl.policy_streams import PolicyStreams
from distrl.programs.build import Builder
from distrl.replay.buffer import ReplayWriter
from distrl.replay.late_rewards import with_final_rewards
from distrl.replay.tee import Tee
from distrl.specs import EnvironmentSpec


def make_actor(
    builders: Mapping[str, Builder],
    pool: Pool,
    inferencers: Mapping[str, InferenceSource],
    replays: Mapping[str, ReplayWriter],
    *,
    index: int = 0,
    first_environment: int = 0,
    life: int = 0,
) -> ActorLoop:
    """Returns an actor.

    Args:
      builders: each task's builder, by name.
      pool: the environments.
      inferencers: sources of actions, by task.
      replays: what stores the steps, by task.
      index: the actor's index.
      first_environment: environment i of the pool has this number and i in the program.
      life: the actor's life.
    """
    builder = next(iter(builders.values()))
    experiment, assignment = builder.experiment, builder.experiment.assignment
    if assignment is None or not isinstance(experiment.environment, SeveralAgents):
        (name,) = experiment.acting
        source = inferencers.get(name)
        if source is None:
            seed = builder.seed("policy/0", index, life)
            source = experiment.fixed[name].make_source(pool.spec, pool.num_envs, seed)
        writer = _writer(name, builders, replays, pool.spec)
        assert writer is not None
        return Actor(pool, source, writer, first_stream=first_environment, life=life)
    spec = experiment.environment.agents()
    agent_pool = experiment.environment.agent_pool(pool, assignment, first_environment)
    policies = {}
    for k, name in enumerate(assignment.policies):
        env_spec = spec.agents[assignment.agents_of(name)[0]]
        replay = _writer(name, builders, replays, env_spec)
        if name in builders:
            source = inferencers[name]
        else:
            seed = builder.seed(f"policy/{k}", index, life)
            source = experiment.fixed[name].make_source(env_spec, agent_pool.num_streams, seed)
        policies[name] = PolicyStreams(source, replay, env_spec, agent_pool.num_streams, life)
    return MultiAgentActor(agent_pool, policies)


def _writer(
    name: str,
    builders: Mapping[str, Builder],
    replays: Mapping[str, ReplayWriter],
    spec: EnvironmentSpec,
) -> ReplayWriter | None:
    """Returns the writer of a policy's steps, for it and for all that learn from it; None: none.

    Args:
      name: the policy that acts.
      builders, replays: those of all tasks, by name.
      spec: the spec of its streams.
    """
    writers = {
        task: with_final_rewards(replays[task], builder.struct, spec)
        for task, builder in builders.items()
        if name in (task, builder.task.learns_from)
    }
    own_writer = writers.pop(name, None)
    if not writers:
        return own_writer
    teacher = builders[name].task if name in builders else None
    others = [
        (writer, stores_extras(builders[task].task, teacher)) for task, writer in writers.items()
    ]
    return Tee(own_writer, others)
