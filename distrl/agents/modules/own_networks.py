"""Parts of a network that the user writes: functions in Haiku, and modules of Flax.

A part is a function that is called inside `hk.transform`, or a module of `flax.linen`, which is
turned into one. Parameters of both are in the network's, under the part's name.
"""

from collections.abc import Callable, Mapping
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

from distrl.errors import ConfigError
from distrl.random_keys import root
from distrl.runtime.traceback_text import one_line
from distrl.types import Nest, State

Part = Callable[..., Any]

# Libraries whose modules are at best functions of JAX arrays: their weights would be constants.
_FOREIGN = {"equinox", "keras", "tensorflow", "torch"}

# Haiku's exception, which it does not export, and Flax's, which need not be installed.
_NO_RANDOM_NUMBERS = ("MissingRNGError", "InvalidRngError")


class FlaxModule:
    """A module of `flax.linen` as a function in Haiku: takes and gives what the module does."""

    def __init__(self, module: Any):
        """Args: module: a `flax.linen.Module`, all of whose variables are parameters."""
        self.module = module

    def __call__(self, *inputs: Nest) -> Any:
        """Returns the module's outputs; only inside `hk.transform`."""
        flat = hk.lift(self._init, name="flax")(hk.maybe_next_rng_key(), *inputs)
        return self.module.apply({"params": _nested(flat)}, *inputs)

    def _init(self, rng: jax.Array, *inputs: Nest) -> dict[str, dict[str, jax.Array]]:
        variables = self.module.init(rng, *inputs)
        others = sorted(variables.keys() - {"params"})
        if others:
            raise ConfigError(
                f"network: {self} has variables of the kind {', '.join(others)}; only parameters "
                "are learned and sent to the actors: take layers without them"
            )
        return _flat(variables.get("params", {}))

    def __repr__(self) -> str:
        return one_line(repr(self.module))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FlaxModule) and self.module == other.module

    def __hash__(self) -> int:
        return hash(repr(self))


def as_part(value: Any, setting: str) -> Part:
    """Returns a user's function as it is, and a Flax module as a function.

    Args:
      value: the function or module.
      setting: the setting's name, for messages.

    Raises:
      ConfigError: it is a class, or a module of `flax.nnx`, Haiku or another library.
    """
    kind = value if isinstance(value, type) else type(value)
    libraries = {".".join(base.__module__.split(".")[:2]) for base in kind.__mro__}
    if isinstance(value, type):
        raise ConfigError(
            f"network.{setting}: expected a function in Haiku, or a module of flax.linen, got the "
            f"class {kind.__name__}: give an instance, or a function that makes one and calls it"
        )
    if "flax.linen" in libraries:
        return FlaxModule(value)
    foreign = {library.partition(".")[0] for library in libraries} & _FOREIGN
    if "flax.nnx" in libraries or foreign or isinstance(value, hk.Module):
        raise ConfigError(
            f"network.{setting}: expected a function in Haiku, or a module of flax.linen, got the "
            f"{kind.__module__}.{kind.__name__}: modules of Haiku are made in a function, and "
            f"those of {' and '.join(sorted(foreign)) or 'flax.nnx'} are not supported"
        )
    return value


def part_name(part: Part) -> str:
    """Returns a part's name, for messages."""
    return str(getattr(part, "__name__", repr(part)))


def make_torso(function: Part) -> Callable[[Nest], Any]:
    """Returns a torso of the user's own; inside `hk.transform`. Its floats are float32."""
    torso = deterministic(hk.to_module(function)(name="torso"), function, "torso")
    return lambda observation: full_precision(torso(full_precision(observation)))


def make_heads(function: Part) -> Callable[[jax.Array], Any]:
    """Returns heads of the user's own; inside `hk.transform`."""
    return deterministic(hk.to_module(function)(name="heads"), function, "heads")


def deterministic(function: Callable[..., Any], part: Part, setting: str) -> Callable[..., Any]:
    """Returns a part's function, which says so in one line if it draws random numbers.

    Args:
      function: the part, as a module of Haiku.
      part: what the user has given.
      setting: the setting's name.
    """

    def run(*inputs: Any) -> Any:
        try:
            return function(*inputs)
        except Exception as error:
            if type(error).__name__ not in _NO_RANDOM_NUMBERS:
                raise
            raise ConfigError(
                f"network.{setting}: {part_name(part)} draws random numbers, as dropout does; a "
                "network is a function of its inputs and parameters: take layers without them"
            ) from error

    return run


def full_precision(nest: Nest) -> Any:
    """Returns a nest with its floats as float32, and all else as it is.

    Layers have parameters of their inputs' dtype, and in half precision an optimiser's small steps
    are lost.
    """
    return jax.tree.map(
        lambda x: x.astype(jnp.float32) if _is_float(getattr(x, "dtype", None)) else x, nest
    )


class OwnCore:
    """A recurrent core of the user's own: (inputs [N, F], state) -> (outputs [N, C], state)."""

    def __init__(self, make: Part):
        """Args: make: returns an `hk.RNNCore`, inside `hk.transform`; or a cell of Flax."""
        self._make = make

    def build(self) -> Callable[[jax.Array, State], tuple[jax.Array, State]]:
        """Returns the core; inside `hk.transform`."""
        make = self._make
        if isinstance(make, FlaxModule):

            def flax_core(x: jax.Array, state: State) -> tuple[jax.Array, State]:
                state, output = hk.to_module(make)(name="core")(state, x)
                return output, state

            return flax_core
        with hk.name_scope("core"):
            core = make()
        if not (callable(core) and hasattr(core, "initial_state")):
            raise ConfigError(
                f"network.core: {part_name(make)} must return an hk.RNNCore, got a "
                f"{type(core).__name__}"
            )
        return core

    def initial_state(self, batch_size: int) -> State:
        """Returns the state at an episode's start, zeros [B, ...].

        They are NumPy's, since jnp would initialise a backend; the shapes are the core's own.
        """

        def own() -> State:
            if isinstance(self._make, FlaxModule):
                cell = self._make.module
                return cell.initialize_carry(root(0), (batch_size, 1))
            core: Any = self.build()
            return core.initial_state(batch_size)

        transformed = hk.transform(own)
        struct = jax.eval_shape(lambda: transformed.apply({}, None))
        return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), struct)


def check_features(x: Any, part: Any, setting: str, rows: int) -> jax.Array:
    """Returns features as float32 [N, F]. Raises ConfigError if they are no floats [N, F]."""
    shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
    if shape is None or len(shape) != 2 or shape[0] != rows or not _is_float(dtype):
        raise ConfigError(
            f"network.{setting}: {part_name(part)} must return features, float32[N, F], got "
            f"{_describe(x, rows)}"
        )
    return full_precision(x)


def check_outputs(outputs: Any, want: Nest, part: Any, rows: int) -> Any:
    """Returns outputs of heads, float32 in the structure of `want`, or refuses them.

    Args:
      outputs: what the heads have returned.
      want: nest of the outputs' shapes, without N.
      part: the user's heads.
      rows: N.

    Raises:
      ConfigError: they are of another structure or shape, or no floats.
    """
    got, expected = jax.tree.leaves(outputs), jax.tree.leaves(want, is_leaf=_is_shape)
    structure = jax.tree.structure(want, is_leaf=_is_shape)
    same = len(got) == len(expected) and _depths(outputs) == _depths(want)
    if not same or any(
        getattr(leaf, "shape", None) != (rows, *shape) or not _is_float(leaf.dtype)
        for leaf, shape in zip(got, expected, strict=True)
    ):
        wanted = _text(want, lambda shape: f"float32{_rows(shape)}")
        raise ConfigError(
            f"network.heads: {part_name(part)} must return {wanted}, got {_describe(outputs, rows)}"
        )
    return full_precision(structure.unflatten(got))


def _is_float(dtype: Any) -> bool:
    return dtype is not None and jnp.issubdtype(dtype, jnp.floating)


def _is_shape(x: Any) -> bool:
    return type(x) is tuple and all(isinstance(n, int) for n in x)


def _depths(nest: Any) -> Any:
    """Returns the nest's structure, of tuples of any kind."""
    if isinstance(nest, (tuple, list)) and not _is_shape(nest):
        return tuple(_depths(part) for part in nest)
    return () if not isinstance(nest, Mapping) else {k: _depths(v) for k, v in nest.items()}


def _rows(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(['N', *map(str, shape)])}]"


def _describe(x: Any, rows: int) -> str:
    def leaf(value: Any) -> str:
        shape = getattr(value, "shape", None)
        if shape is None:
            return f"a {type(value).__name__}"
        named = ["N" if n == rows and not axis else str(n) for axis, n in enumerate(shape)]
        return f"{value.dtype}[{', '.join(named)}]"

    return _text(x, leaf)


def _text(nest: Any, leaf: Callable[[Any], str]) -> str:
    if isinstance(nest, Mapping):
        return "{" + ", ".join(f"{k}: {_text(v, leaf)}" for k, v in nest.items()) + "}"
    if isinstance(nest, (tuple, list)) and not _is_shape(nest):
        return "(" + ", ".join(_text(part, leaf) for part in nest) + ")"
    return leaf(nest)


def _flat(params: Mapping[str, Any]) -> dict[str, dict[str, jax.Array]]:
    """Returns nested parameters as Haiku's: by module, whose name is its path, and name."""
    flat: dict[str, dict[str, jax.Array]] = {}

    def visit(prefix: str, node: Mapping[str, Any]) -> None:
        for name, value in node.items():
            if isinstance(value, Mapping):
                visit(f"{prefix}/{name}", value)
            else:
                flat.setdefault(prefix, {})[name] = value

    visit("params", params)
    return flat


def _nested(flat: Mapping[str, Mapping[str, jax.Array]]) -> dict[str, Any]:
    """Reverses `_flat`."""
    root: dict[str, Any] = {}
    for path, bundle in flat.items():
        node = root
        for name in path.split("/")[1:]:
            node = node.setdefault(name, {})
        node.update(bundle)
    return root
