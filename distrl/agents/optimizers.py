"""The algorithms' optimisers: Adam, RMSProp or SGD, by component, behind a clip of the norm."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax

from distrl.types import Nest, Params

OPTIMIZERS = ("adam", "rmsprop", "sgd")
Rates = Mapping[str, optax.Schedule]


class ByComponent(Protocol):
    """Settings by component of the parameters; see `distrl.agents.components.Components`."""

    @property
    def configs(self) -> Mapping[str, Any]:
        """The settings of the components that have any."""

    @property
    def labels(self) -> Callable[[Params], Nest]:
        """From the parameters to each leaf's component."""

    def is_frozen(self, name: str) -> bool:
        """Whether a component keeps its parameters."""

    def optimizer(self, name: str, default: str) -> str:
        """Returns the name of a component's optimiser."""

    def rate(self, name: str) -> optax.Schedule:
        """Returns a component's learning rate."""


def annealed(learning_rate: float, updates: float | None, delay: int = 1) -> optax.Schedule:
    """Returns a learning rate that falls linearly to 0 within so many updates.

    A constant one is a schedule, too, so that an optimiser's state has the same form with both.

    Args:
      learning_rate: the learning rate at the first update.
      updates: the learner's; None or 0: the rate stays as it is.
      delay: the learner's updates for each update that the optimiser makes and counts.
    """
    if not updates:
        return optax.constant_schedule(learning_rate)
    # As a float: there may be more of them than an optimiser counts, which stops at 2**31 - 1.
    whole = float(max(1, updates // delay))
    return lambda count: learning_rate * jnp.maximum(1 - count / whole, 0.0)


def if_made(made: jax.Array, after: Nest, before: Nest) -> Nest:
    """Returns what an update gave, `after`, or `before` if it was not made, a traced bool.

    Updates that were not made count for schedules of learning rates, and for no other state.
    """

    def is_schedule(state: Any) -> bool:
        return isinstance(state, optax.ScaleByScheduleState)

    def choose(new: Any, old: Any) -> Any:
        return new if is_schedule(new) else jnp.where(made, new, old)

    return jax.tree.map(choose, after, before, is_leaf=is_schedule)


def make_optimizer(
    learning_rate: optax.ScalarOrSchedule,
    max_gradient_norm: float | None,
    name: str = "adam",
    components: ByComponent | None = None,
    epsilon: float = 1e-5,
) -> optax.GradientTransformationExtraArgs:
    """Returns an optimiser, behind a clip of the gradients' global norm.

    Args:
      learning_rate: a schedule over updates, which the state counts; or a number, without counts.
      max_gradient_norm: gradients are scaled down to this norm; None: never.
      name: one of OPTIMIZERS. RMSProp has its epsilon under the root; it and Adam correct their
        bias towards 0 at the start. RMSProp's `update` takes the number of updates made before as
        `count`, which the others ignore.
      components: a `ByComponent`; None: all parameters alike. The gradients of those that are
        frozen must be 0. The state has the same structure as without and with a schedule, unless a
        component has another optimiser.
      epsilon: Adam's and RMSProp's.
    """
    if components is None or not components.configs:
        scale = optax.scale_by_learning_rate(learning_rate)
        return _behind_clip(max_gradient_norm, _direction(name, epsilon), scale)
    return _by_component(max_gradient_norm, name, components, epsilon)


def _behind_clip(
    max_gradient_norm: float | None, *parts: optax.GradientTransformation
) -> optax.GradientTransformationExtraArgs:
    optimizer = optax.chain(*parts)
    if max_gradient_norm is None:
        return optax.with_extra_args_support(optimizer)
    return optax.chain(optax.clip_by_global_norm(max_gradient_norm), optimizer)


def _direction(name: str, epsilon: float, counts: bool = False) -> optax.GradientTransformation:
    """Returns an optimiser without its learning rate.

    Args:
      name, epsilon: as for `make_optimizer`.
      counts: RMSProp has a counter in its state instead of the argument `count`.
    """
    if name == "adam":
        return optax.scale_by_adam(eps=epsilon)
    if name == "sgd":
        return optax.identity()
    if counts:
        return optax.scale_by_rms(decay=0.99, eps=epsilon, bias_correction=True)
    return _scale_by_rms(decay=0.99, epsilon=epsilon)


def _by_component(
    max_gradient_norm: float | None,
    name: str,
    components: ByComponent,
    epsilon: float,
) -> optax.GradientTransformationExtraArgs:
    """Returns the optimiser of parameters whose components differ; see `make_optimizer`."""

    def chain(labels: Nest) -> optax.GradientTransformationExtraArgs:
        optimizers = jax.tree.map(lambda label: components.optimizer(label, name), labels)
        kinds = sorted(set(jax.tree.leaves(optimizers)))
        if kinds == [name]:
            direction = _direction(name, epsilon)
        else:
            each = {kind: _direction(kind, epsilon, counts=True) for kind in kinds}
            direction = optax.partition(each, optimizers)
        rates = {label: components.rate(label) for label in set(jax.tree.leaves(labels))}
        return _behind_clip(max_gradient_norm, direction, _scale_by_rates(labels, rates))

    def init(params: Params) -> Any:
        return chain(components.labels(params)).init(params)

    def update(
        grads: Params, state: Any, params: Params | None = None, **extra: Any
    ) -> tuple[Params, Any]:
        labels = components.labels(grads)
        updates, state = chain(labels).update(grads, state, params, **extra)

        def kept(update: jax.Array, label: str) -> jax.Array:
            # -0.0 is the number that changes none when added to it, not even -0.0.
            return jnp.full_like(update, -0.0) if components.is_frozen(label) else update

        return jax.tree.map(kept, updates, labels), state

    return optax.GradientTransformationExtraArgs(init, update)


def _scale_by_rates(labels: Nest, rates: Rates) -> optax.GradientTransformation:
    """Returns `optax.scale_by_learning_rate` with a learning rate for each leaf.

    Args:
      labels: each leaf's component.
      rates: the components' learning rates.
    """

    def init(params: Params) -> optax.ScaleByScheduleState:
        del params
        return optax.ScaleByScheduleState(count=jnp.zeros([], jnp.int32))

    def update(
        grads: Params, state: Any, params: Params | None = None
    ) -> tuple[Params, optax.ScaleByScheduleState]:
        del params

        def scaled(g: jax.Array, label: str) -> jax.Array:
            return jnp.array(-rates[label](state.count), g.dtype) * g

        updates = jax.tree.map(scaled, grads, labels)
        return updates, optax.ScaleByScheduleState(count=optax.safe_increment(state.count))

    return optax.GradientTransformation(init, update)


def _scale_by_rms(decay: float, epsilon: float) -> optax.GradientTransformationExtraArgs:
    """Returns the division by the root of the moving average of the squared gradients.

    The average starts at 0, so the first ones are too small by 1 - decay ** updates: uncorrected,
    the first update is 1 / sqrt(1 - decay) = 10 times as large as the learning rate. It differs
    from `optax.scale_by_rms(bias_correction=True)` in that the learner's state counts the updates,
    not a second counter: the state is that of uncorrected RMSProp, whose checkpoints load.
    """

    def init(params: Params) -> optax.ScaleByRmsState:
        return optax.ScaleByRmsState(jax.tree.map(jnp.zeros_like, params))

    def update(
        grads: Params, state: Any, params: Params | None = None, *, count: Any, **_: Any
    ) -> tuple[Params, optax.ScaleByRmsState]:
        nu = jax.tree.map(
            lambda g, average: (1 - decay) * jnp.square(g) + decay * average, grads, state.nu
        )
        share = 1 - decay ** (jnp.float32(count) + 1)  # the count stays at the largest int32
        grads = jax.tree.map(
            lambda g, average: g * jax.lax.rsqrt(average / share + epsilon), grads, nu
        )
        return grads, optax.ScaleByRmsState(nu)

    return optax.GradientTransformationExtraArgs(init, update)
