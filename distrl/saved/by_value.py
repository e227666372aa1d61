"""Pickles of classes by value, which JAX knows as pytrees where they are loaded as here."""

import dataclasses
import io
from typing import Any

import cloudpickle


def dumps(value: Any) -> bytes:
    """As `cloudpickle.dumps`, and dataclasses that are pytrees of JAX stay pytrees."""
    with io.BytesIO() as file:
        Pickler(file).dump(value)
        return file.getvalue()


class Pickler(cloudpickle.Pickler):
    """Pickles classes by value with their fields that JAX has registered.

    These are dataclasses of flax.struct, and others of `jax.tree_util.register_dataclass`. A class
    that is registered with functions of its own is not, as JAX does not tell these functions.
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
    """Completes a class that is being loaded, and registers it, unless its process made it."""
    import jax

    set_state, state_of_class, (data, meta) = state
    set_state(cls, state_of_class)
    if _registered_fields(cls) is None:
        jax.tree_util.register_dataclass(cls, data, meta)


def _registered_fields(cls: type) -> tuple[list[str], list[str]] | None:
    """Returns the data fields and meta fields of a class that JAX knows as a dataclass, else None.

    JAX flattens an instance for it that has a mark in each of its fields.
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
    except Exception:  # it is no pytree, or one with functions of its own
        return None
    as_dataclass = [(jax.tree_util.GetAttrKey(name),) for name in data]
    if [path for path, _ in leaves] != as_dataclass or sorted(data + meta) != sorted(marks):
        return None
    return data, meta
