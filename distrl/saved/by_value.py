"""Pickles classes by value so that they are pytrees of JAX where they are loaded, as here."""

import dataclasses
import io
from typing import Any

import cloudpickle


def dumps(value: Any) -> bytes:
    """Like `cloudpickle.dumps`, but dataclasses that are pytrees of JAX stay pytrees."""
    with io.BytesIO() as file:
        Pickler(file).dump(value)
        return file.getvalue()


class Pickler(cloudpickle.Pickler):
    """Pickles classes by value, together with the fields that JAX has registered for them.

    This works for dataclasses of flax.struct, and others from `jax.tree_util.register_dataclass`,
    but not for a class that is registered with its own functions, which JAX does not expose.
    """

    def reducer_override(self, obj: Any) -> Any:
        """See `pickle.Pickler`."""
        reduced = super().reducer_override(obj)
        if not (isinstance(reduced, tuple) and isinstance(obj, type)):
            return reduced
        fields = _registered_fields(obj)
        if fields is None:
            return reduced
        make, arguments, state, items, pairs, set_state = reduced
        return make, arguments, (set_state, state, fields), items, pairs, _set_state


def _set_state(cls: type, state: tuple[Any, ...]) -> None:
    """Completes a class that is being loaded, and registers it unless it is registered already."""
    import jax

    set_state, state_of_class, (data, meta) = state
    set_state(cls, state_of_class)
    if _registered_fields(cls) is None:
        jax.tree_util.register_dataclass(cls, data, meta)


def _registered_fields(cls: type) -> tuple[list[str], list[str]] | None:
    """Returns the data and meta fields of a class that JAX knows as a dataclass; otherwise None.

    To find them, JAX flattens an instance that has a mark in each of its fields.
    """
    import jax

    if not dataclasses.is_dataclass(cls):
        return None
    marks = {field.name: object() for field in dataclasses.fields(cls) if field.init}
    names = {id(mark): name for name, mark in marks.items()}
    try:
        instance = object.__new__(cls)
        for name, mark in marks.items():
            object.__setattr__(instance, name, mark)
        leaves, structure = jax.tree_util.tree_flatten_with_path(instance)
        _, aux = structure.node_data() or (None, ())
        data, meta = [names[id(leaf)] for _, leaf in leaves], [names[id(mark)] for mark in aux]
    except Exception:  # it is not a pytree, or one with its own functions
        return None
    as_dataclass = [(jax.tree_util.GetAttrKey(name),) for name in data]
    if [path for path, _ in leaves] != as_dataclass or sorted(data + meta) != sorted(marks):
        return None
    return data, meta
