"""Splits batches into shares, and computes the gradients of a share."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from distrl.agents.agent import PRIORITIES, Agent, LearnerState, Logs
from distrl.agents.compiling import update_options
from distrl.agents.losses.batch_share import Share, share_of_batch
from distrl.agents.losses.prioritized import check_priorities
from distrl.agents.structs import params_struct
from distrl.agents.weak_types import strong
from distrl.gradients.layout import MessageLayout
from distrl.types import TIME_FIELDS, Nest, Params, Trajectory


class Extent(NamedTuple):
    """A share: the unrolls `start` to `start + size`."""

    start: int
    size: int


def split(batch_size: int, count: int) -> list[Extent]:
    """Returns `count` shares of a batch, as equal as possible: the first have one unroll more."""
    less, larger = divmod(batch_size, count)
    sizes = [less + (index < larger) for index in range(count)]
    return [Extent(*pair) for pair in zip(itertools.accumulate([0, *sizes]), sizes)]


class BatchFacts(NamedTuple):
    """What the gradients of a share depend on beyond the share: facts of the whole batch."""

    num_real: int  # see `Agent.num_real`
    min_probability: float

    @classmethod
    def of(
        cls, agent: Agent, params: Params, learner_state: LearnerState, batch: Trajectory
    ) -> "BatchFacts":
        """Returns the facts of a batch of host arrays, from which these parameters learn."""
        counted = agent.counted(params, learner_state, batch)
        return cls(agent.num_real(counted), float(np.min(counted.probability)))


class ShareGradients:
    """`Agent.compute_gradients` on shares of batches; each size of a share is compiled once.

    It takes only those leaves of parameters and learner state that the gradients depend on: not the
    optimiser's state, for example. It takes and returns flat lists of arrays.

    Attributes:
      batch_size: unrolls of a whole batch.
      inputs: layout of the leaves of parameters and learner state that it takes.
    """

    def __init__(self, agent: Agent, struct: Trajectory, length: int, batch_size: int):
        """Args:
        agent: the agent, for which `check_shares` holds.
        struct: shapes and dtypes of what is stored, for one stream at one step.
        length: transitions of an unroll.
        batch_size: unrolls of a batch.
        """
        self._agent, self._struct, self._length = agent, struct, length
        self.batch_size = batch_size
        params = params_struct(agent)
        state = jax.eval_shape(lambda each: strong(agent.initial_learner_state(each)), params)
        self._leaves, self._treedef = jax.tree.flatten((params, state))
        scalar = jax.ShapeDtypeStruct((), np.float32)
        start = jax.ShapeDtypeStruct((), np.int32)
        self._facts = (start, scalar, scalar)
        self._used, (self._grads, self._logs) = self._trace()
        self._input_structs = [self._leaves[index] for index in self._used]
        self.inputs = MessageLayout(self._input_structs)
        self._compiled: dict[int, Any] = {}
        self._layouts: dict[int, MessageLayout] = {}  # layouts of shares, by size
        self._outputs: dict[int, tuple[Any, MessageLayout]] = {}  # structure and layout, by size

    def select(self, params: Params, learner_state: Any) -> list[Any]:
        """Returns the leaves that `inputs` lays out."""
        leaves = self._treedef.flatten_up_to((params, learner_state))
        return [leaves[index] for index in self._used]

    def inputs_of(self, indices: Sequence[int]) -> list[Any]:
        """Returns the structs of some of the inputs."""
        return [self._input_structs[index] for index in indices]

    def batch_structs(self, size: int) -> list[Any]:
        """Returns the structs of the leaves of a share with `size` unrolls."""
        return jax.tree.leaves(self._batch(size))

    def share_layout(self, size: int) -> MessageLayout:
        """Returns the layout of a share with `size` unrolls."""
        if size not in self._layouts:
            self._layouts[size] = MessageLayout(self.batch_structs(size))
        return self._layouts[size]

    def outputs(self, size: int) -> MessageLayout:
        """Returns the layout of the results for a share of `size` unrolls."""
        return self._output(size)[1]

    def result(self, size: int, leaves: Sequence[Any]) -> tuple[Params, Logs]:
        """Returns gradients and logs from flat results."""
        return self._output(size)[0].unflatten(leaves)

    def _batch(self, size: int) -> Trajectory:
        def struct(name: str, leaf: Any) -> jax.ShapeDtypeStruct:
            leading = (self._length + 1, size) if name in TIME_FIELDS else (size,)
            return jax.ShapeDtypeStruct((*leading, *leaf.shape), leaf.dtype)

        return Trajectory(
            **{
                name: jax.tree.map(lambda leaf, name=name: struct(name, leaf), nest)
                for name, nest in self._struct._asdict().items()
            }
        )

    def _output(self, size: int) -> tuple[Any, MessageLayout]:
        if size not in self._outputs:
            logs = dict(self._logs)
            if PRIORITIES in logs:  # one per unroll; nothing else depends on their number
                logs[PRIORITIES] = jax.ShapeDtypeStruct((size,), logs[PRIORITIES].dtype)
            leaves, structure = jax.tree.flatten((self._grads, logs))
            self._outputs[size] = structure, MessageLayout(leaves)
        return self._outputs[size]

    def _gradients(
        self, leaves: Sequence[Any], batch: Trajectory, start: Any, num_real: Any, least: Any
    ) -> tuple[Params, Logs]:
        """Computes a share's gradients and logs, given all leaves; traced by JAX."""
        params, state = self._treedef.unflatten(leaves)
        size = batch.stream_id.shape[0]
        with share_of_batch(Share(size, self.batch_size, start, num_real, least)):
            grads, logs = self._agent.compute_gradients(params, state, batch)
        check_priorities(logs, PRIORITIES, size)
        return grads, logs

    def _trace(self) -> tuple[list[int], Any]:
        """Returns the leaves that the gradients depend on, and the structs of a share's results."""
        from jax.interpreters import partial_eval

        args = (self._leaves, self._batch(1), *self._facts)
        closed, results = jax.make_jaxpr(self._gradients, return_shape=True)(*args)
        _, used = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
        return [index for index in range(len(self._leaves)) if used[index]], results

    def compile(self, size: int) -> None:
        """Compiles the function for shares of `size` unrolls, if it is not compiled yet."""
        if size in self._compiled:
            return
        zeros = {
            index: np.zeros((), leaf.dtype)
            for index, leaf in enumerate(self._leaves)
            if index not in self._used
        }

        def flat(inputs: Sequence[Any], batch: Sequence[Any], *facts: Any) -> list[Any]:
            given = iter(inputs)
            leaves = [
                jnp.broadcast_to(zeros[index], leaf.shape) if index in zeros else next(given)
                for index, leaf in enumerate(self._leaves)
            ]
            trajectory = jax.tree.unflatten(jax.tree.structure(self._batch(size)), batch)
            return jax.tree.leaves(self._gradients(leaves, trajectory, *facts))

        args = (self._input_structs, self.batch_structs(size), *self._facts)
        compiled = jax.jit(flat, compiler_options=update_options(self._agent))
        self._compiled[size] = compiled.lower(*args).compile()

    def __call__(
        self, inputs: Sequence[Any], batch: Sequence[Any], extent: Extent, facts: BatchFacts
    ) -> list[Any]:
        """Returns the leaves of a share's gradients and logs.

        Args:
          inputs: leaves as `select` returns them.
          batch: leaves of the share.
          extent: which unrolls these are.
          facts: the facts of the whole batch.
        """
        self.compile(extent.size)
        numbers = (np.int32(extent.start), *map(np.float32, facts))
        return self._compiled[extent.size](list(inputs), list(batch), *numbers)


def leaves_of_share(batch: Trajectory, extent: Extent) -> list[Nest]:
    """Returns the leaves of a share of a batch of host arrays, as views of the batch."""
    part = slice(extent.start, extent.start + extent.size)
    leaves: list[Any] = []
    for name, nest in batch._asdict().items():
        rows = (slice(None), part) if name in TIME_FIELDS else part
        leaves += [np.asarray(leaf)[rows] for leaf in jax.tree.leaves(nest)]
    return leaves
