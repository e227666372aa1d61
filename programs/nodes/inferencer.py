"""The node that serves inference to several actors."""

from collections.abc import Sequence
from typing import Any

from distrl.experiment import Experiment
from distrl.inference.frame_service import FrameInferenceServer
from distrl.inference.messages import InferenceMessages
from distrl.inference.server import InferenceServer
from distrl.inference.slot_server import SlotServer
from distrl.inference.slots import Sizes, SlotFile
from distrl.learner_group.devices import check_gpus
from distrl.programs.build import Builder
from distrl.programs.groups import INFERENCER, LEARNER
from distrl.programs.inference_clients import InferenceHandle
from distrl.programs.nodes.process import configure_jax, owner_of_files
from distrl.programs.nodes.time_reports import TimeReports
from distrl.programs.program import ExperimentProgram, FrameEndpoint, NodeHandle
from distrl.programs.remote import TaskVariables
from distrl.programs.running import shared_files
from distrl.programs.running.progress import patience
from distrl.programs.substrate import node_context
from distrl.runtime.durations import longest_wait
from distrl.runtime.heartbeat import current_heartbeat
from distrl.shared_memory import segment
from distrl.task import Task
from distrl.variables.service import RemoteVariables

_MAX_ENDPOINTS = 8  # servers of one inferencer


def add_inferencers(
    program: ExperimentProgram,
    task: Task,
    learner: NodeHandle,
    monitor: NodeHandle,
    on_one_host: bool,
) -> list[InferenceHandle]:
    """Adds the inferencers of a task, which report what they spend their time on.

    Args:
      program: the program.
      task: the task.
      learner: where the parameters come from.
      monitor: takes the reports.
      on_one_host: whether the actors are on the inferencers' machine.

    Returns:
      For each actor, the service that it asks.
    """
    num_actors, num_inferencers = task.actors.largest_num_actors, task.inference.num_inferencers
    if on_one_host and task.inference.transport != "courier":
        return _add_with_slots(program, task, learner, monitor)
    timeout = task.inference.timeout
    endpoints_of = []  # by inferencer
    before = len(program.program.groups.get(INFERENCER.name, ()))  # other tasks'
    for index in range(num_inferencers):
        more = [] if program.builtin else _endpoints(program, task, index)
        served = program.new_frame_endpoint() if program.builtin else None
        first = program.add_call_node(
            INFERENCER,
            InferencerNode,
            task.name,
            index,
            f"{INFERENCER.name}/{before + index}",
            learner,
            monitor,
            more,
            served,
            None,
            call_timeout=timeout,
            endpoints=[served.address] if served else more,
        )
        if served:
            endpoints_of.append([InferenceHandle(first._replace(served=served))])
            continue
        others = [first._replace(client=_courier_handle(address, timeout)) for address in more]
        endpoints_of.append([InferenceHandle(node) for node in (first, *others)])
    endpoints = []
    for actor in range(num_actors):
        choices = endpoints_of[actor % num_inferencers]
        endpoints.append(choices[actor // num_inferencers % len(choices)])
    return endpoints


def _add_with_slots(
    program: ExperimentProgram, task: Task, learner: NodeHandle, monitor: NodeHandle
) -> list[InferenceHandle]:
    """Adds inferencers that are asked in shared memory."""
    messages = InferenceMessages(task.make_agent())
    num_inferencers = task.inference.num_inferencers
    services = []
    before = len(program.program.groups.get(INFERENCER.name, ()))  # other tasks'
    for index in range(num_inferencers):
        slots = f"{task.name}-{program.unique_name}-inferencer-{index}"
        count = _clients(task, index)
        sizes = Sizes(messages, count, task.actors.envs_per_step)
        segment.check_room(slots, sizes.nbytes, segment.REQUESTS)
        node = program.add_call_node(
            INFERENCER,
            InferencerNode,
            task.name,
            index,
            f"{INFERENCER.name}/{before + index}",
            learner,
            monitor,
            (),
            None,
            slots,
            call_timeout=task.inference.timeout,
        )
        services.append(InferenceHandle(node, slots=slots, num_slots=count))
    return [
        services[actor % num_inferencers]._replace(slot=actor // num_inferencers)
        for actor in range(task.actors.largest_num_actors)
    ]


class InferencerNode:
    """Serves `Inferencer.inference`."""

    def __init__(
        self,
        experiment: Experiment,
        task: str,
        index: int,
        name: str,
        learner: NodeHandle,
        monitor: NodeHandle,
        endpoints: Sequence[Any],
        served: FrameEndpoint | None,
        slots: str | None,
    ):
        """Args:
        experiment: what to train.
        task: name of the task.
        index: index of the inferencer among the task's.
        name: the node's name.
        learner: where the parameters come from.
        monitor: takes its reports.
        endpoints: more addresses, Launchpad's, at which `inference` is served. Courier's server
          starts a thread for a call, and ends one after it, whenever two calls overlap, and JAX is
          several times slower in a new thread: so actors use different endpoints.
        served: where actors ask it by frames; None: nowhere.
        slots: name of the file of slots in shared memory; None: it is not asked there.
        """
        configure_jax()
        current_heartbeat().tick()
        self._stop = node_context.stop_event()
        self._servers = [_courier_server(address) for address in endpoints]
        builder = Builder(experiment, task)
        config = builder.task.inference
        builder.start_backend()
        check_gpus(min(config.num_gpus, 1), f"inference.num_gpus={config.num_gpus}")
        actors = builder.task.actors  # its streams
        clients = _clients(builder.task, index)
        rows = actors.envs_per_step
        sizes = [rows]
        while sizes[-1] < rows * clients:
            sizes.append(min(2 * sizes[-1], rows * clients))
        messages = InferenceMessages(builder.agent)
        heartbeat = current_heartbeat()
        # Actors may put their first requests there while this node compiles.
        file = None if slots is None else _slot_file(slots, Sizes(messages, clients, rows))
        source = RemoteVariables(TaskVariables(learner, task), builder.agent)
        inferencer = builder.make_inferencer(
            builder.make_variables(
                source, self._stop, patience(builder.task.learner.timeout, LEARNER.name)
            ),
            clients * actors.num_envs,
            # Inferencers of several tasks draw different numbers.
            index=index + builder.task.index * config.num_inferencers,
            life=heartbeat.life,
            is_service=True,
            batch_sizes=sizes,
            codec=messages,
        )
        inferencer.warm_up()
        self._service: InferenceServer | SlotServer
        self._frames: FrameInferenceServer | None = None
        if file is None:
            self._service = InferenceServer(
                inferencer, messages, sizes[-1], config.timeout, heartbeat
            )
            if served is not None:
                address = served.address.resolve()
                self._frames = FrameInferenceServer(
                    self._service, messages, rows, address, served.key
                )
        else:
            self._service = SlotServer(inferencer, messages, file, heartbeat)
        self._times = TimeReports(monitor, task, name, self._service.times)

    def inference(self, data: bytes) -> bytes:
        """See `InferenceServer.inference`."""
        assert isinstance(self._service, InferenceServer)
        return self._service.inference(data)

    def request_version(self, version: int) -> None:
        """See `Inferencer.request_version`."""
        self._service.request_version(version)

    def run(self) -> None:
        """Serves until the program stops: in shared memory, or at all endpoints."""
        if isinstance(self._service, SlotServer):
            self._service.serve(self._stop, self._times.send_if_due)
            return
        current_heartbeat().wait()
        for server in self._servers:
            server.Bind("inference", self._service.inference)
            server.Bind("request_version", self._service.request_version)
            server.Start()
        try:
            self._times.send_until(self._stop)
        finally:
            for server in self._servers:
                server.Stop()
            if self._frames is not None:
                self._frames.close()


def _clients(task: Task, index: int) -> int:
    """Returns the number of actors that ask an inferencer."""
    return len(range(index, task.actors.largest_num_actors, task.inference.num_inferencers))


def _endpoints(program: ExperimentProgram, task: Task, index: int) -> list[Any]:
    """Returns the addresses that an inferencer has beside its first."""
    count = min(_clients(task, index), _MAX_ENDPOINTS)
    return [program.new_endpoint() for _ in range(count - 1)]


def _courier_handle(address: Any, timeout: float) -> Any:
    import launchpad as lp

    return lp.CourierHandle(address, call_timeout=longest_wait(timeout))


def _courier_server(address: Any) -> Any:
    """Returns a Courier server for an `lp.Address`, not started yet."""
    import courier
    import launchpad as lp

    return courier.Server(port=lp.get_port_from_address(address.resolve()), thread_pool_size=16)


def _slot_file(name: str, sizes: Sizes) -> SlotFile:
    """Returns an inferencer's file of slots, which outlives its process."""
    if shared_files.left_by_earlier_life(name, segment.REQUESTS):
        return SlotFile.open(name, sizes, timeout=0.0)  # with the requests that wait
    file = SlotFile.create(name, sizes, owner_of_files())
    shared_files.note_made()
    return file
