"""Inference for several actors as a service."""

from collections.abc import Sequence

import courier
import launchpad as lp

from distrl.experiment import Experiment
from distrl.inference.messages import InferenceMessages
from distrl.inference.server import InferenceServer
from distrl.learner_group.devices import check_gpus
from distrl.programs.build import Builder
from distrl.programs.groups import ENDPOINT_PORT_NAME, INFERENCER, LEARNER
from distrl.programs.nodes.process import configure_jax
from distrl.programs.nodes.time_reports import TimeReports
from distrl.programs.program import ExperimentProgram, NodeHandle
from distrl.programs.remote import TaskVariables
from distrl.programs.running.progress import patience
from distrl.runtime.heartbeat import current_heartbeat
from distrl.task import Task
from distrl.variables import RemoteVariables

_MAX_ENDPOINTS = 8  # servers of one inferencer


def add_inferencers(
    program: ExperimentProgram, task: Task, learner: NodeHandle, monitor: NodeHandle
) -> list[NodeHandle]:
    """Adds the inferencers of a task, which report what their time goes to.

    Returns:
      For each actor, the endpoint of the inferencer that it asks.
    """
    num_actors, num_inferencers = task.actors.most, task.inference.num_inferencers
    timeout = task.inference.timeout
    endpoints_of = []  # of each inferencer
    for index in range(num_inferencers):
        clients = len(range(index, num_actors, num_inferencers))
        more = [lp.Address(ENDPOINT_PORT_NAME) for _ in range(min(clients, _MAX_ENDPOINTS) - 1)]
        first = program.add_courier_node(
            INFERENCER,
            InferencerNode,
            task.name,
            index,
            learner,
            monitor,
            more,
            call_timeout=timeout,
            endpoints=more,
        )
        others = [lp.CourierHandle(address, call_timeout=timeout) for address in more]
        endpoints_of.append([first, *(first._replace(client=handle) for handle in others)])
    endpoints = []
    for actor in range(num_actors):
        choices = endpoints_of[actor % num_inferencers]
        endpoints.append(choices[actor // num_inferencers % len(choices)])
    return endpoints


class InferencerNode:
    """Serves `Inferencer.inference`."""

    def __init__(
        self,
        experiment: Experiment,
        task: str,
        index: int,
        learner: NodeHandle,
        monitor: NodeHandle,
        endpoints: Sequence[lp.Address],
    ):
        """Args:
        experiment: what to train.
        task: name of the task.
        index: index of the inferencer.
        learner: where the parameters come from.
        monitor: takes its reports.
        endpoints: more addresses at which `inference` is served. A gRPC server starts a thread for
          a call, and ends one after it, whenever two calls overlap, and JAX is several times slower
          in a new thread: so actors use different endpoints.
        """
        configure_jax()
        current_heartbeat().tick()
        self._stop = lp.stop_event()
        self._servers = [
            courier.Server(port=lp.get_port_from_address(address.resolve()), thread_pool_size=16)
            for address in endpoints
        ]
        builder = Builder(experiment, task)
        config = builder.task.inference
        check_gpus(min(config.num_gpus, 1), f"inference.num_gpus={config.num_gpus}")
        actors = builder.task.actors  # its streams
        clients = len(range(index, actors.most, config.num_inferencers))
        rows = actors.envs_per_step
        sizes = [rows]
        while sizes[-1] < rows * clients:
            sizes.append(min(2 * sizes[-1], rows * clients))
        messages = InferenceMessages(builder.agent)
        heartbeat = current_heartbeat()
        source = RemoteVariables(TaskVariables(learner, task), builder.agent)
        inferencer = builder.make_inferencer(
            builder.make_variables(
                source, self._stop, patience(builder.task.learner.timeout, LEARNER.name)
            ),
            clients * actors.num_envs,
            # Inferencers of several tasks draw different numbers.
            index=index + builder.task.index * config.num_inferencers,
            life=heartbeat.life,
            batch_sizes=sizes,
            codec=messages,
        )
        inferencer.warm_up()
        self._service = InferenceServer(inferencer, messages, sizes[-1], config.timeout, heartbeat)
        name = f"{INFERENCER.name}/{index}"
        self._times = TimeReports(monitor, task, name, self._service.times)

    def inference(self, data: bytes) -> bytes:
        """See `InferenceServer.inference`."""
        return self._service.inference(data)

    def ask(self, version: int) -> None:
        """See `Inferencer.ask`."""
        self._service.ask(version)

    def run(self) -> None:
        """Serves at all endpoints until the program stops."""
        current_heartbeat().wait()
        for server in self._servers:
            server.Bind("inference", self._service.inference)
            server.Bind("ask", self._service.ask)
            server.Start()
        try:
            self._times.send_until(self._stop)
        finally:
            for server in self._servers:
                server.Stop()
