"""`--config.learner.batch_size=64`: every setting of an experiment as an absl flag."""

import ast
import contextlib
import dataclasses
import inspect
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from absl import flags

from distrl.errors import ConfigError
from distrl.launch.run_dir.config_dict import (
    SCALARS,
    is_settings_mapping,
    is_settings_tuple,
    setting_fields,
)

PREFIX = "config"  # first part of the flags' names
MODULE_NAME = "settings of the experiment"  # under which absl lists the flags
_ATTRIBUTE = re.compile(r"^  (\w+(?:, \w+)*): (.*(?:\n    .*)*)", re.MULTILINE)


def define_flags(settings: Any, values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines a flag for each field of a dataclass that can be given on a command line.

    Fields of nested dataclasses get dotted names; dataclasses in a tuple are addressed by their
    `name`. absl then suggests near matches for an unknown flag, and lists each setting with its
    default in `--help`.

    Args:
      settings: a dataclass; its values become the flags' defaults.
      values: the flags to add them to.
    """
    for name, leaf in describe(settings, PREFIX).items():
        parser = SettingParser(leaf.kinds)
        serializer: flags.ArgumentSerializer[Any] = flags.ArgumentSerializer()
        flags.DEFINE(
            parser, name, leaf.value, leaf.doc, serializer=serializer, allow_override=True,
            module_name=MODULE_NAME, flag_values=values,
        )  # fmt: skip


def apply_flags(
    settings: Any,
    values: flags.FlagValues,
    prefix: str = PREFIX,
    instead: Mapping[str, Any] = types.MappingProxyType({}),
) -> Any:
    """Returns `settings` with the values of the flags that were given.

    Args:
      settings: the dataclass that `define_flags` was called with.
      values: the parsed flags.
      prefix: first part of the flags' names.
      instead: fields that these values replace before the flags do.

    Raises:
      ConfigError: a value that its dataclass refuses.
    """
    changes: dict[str, Any] = dict(instead)
    for field in setting_fields(settings):
        name = f"{prefix}.{field.name}"
        old = instead.get(field.name, getattr(settings, field.name))
        if dataclasses.is_dataclass(old):
            new = apply_flags(old, values, name)
            if new is not old:
                changes[field.name] = new
        elif is_settings_tuple(old):
            parts = tuple(apply_flags(part, values, f"{name}.{part.name}") for part in old)
            if any(new is not part for new, part in zip(parts, old, strict=True)):
                changes[field.name] = parts
        elif parts_by_name := _by_name(field, old):
            named = {
                key: apply_flags(part, values, f"{name}.{key}")
                if dataclasses.is_dataclass(part)
                else part
                for key, part in parts_by_name.items()
            }
            changed = {key for key, part in parts_by_name.items() if named[key] is not part}
            if changed:
                changes[field.name] = {
                    key: new for key, new in named.items() if key in (old or {}) or key in changed
                }
        elif name in values and values[name].present:
            changes[field.name] = values[name].value
    return dataclasses.replace(settings, **changes) if changes else settings


def setting(settings: type, name: str, text: str) -> Any:
    """Parses the value of a dataclass's field.

    Args:
      settings: the dataclass.
      name: the field.
      text: the value as on a command line.

    Raises:
      ConfigError: the text is no value of the field's type.
    """
    try:
        return SettingParser(_kinds(_hints(settings)[name])).parse(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None


def _by_name(field: Any, value: Any) -> dict[str, Any]:
    """Returns settings by name: those of a mapping, and those for which its field has names.

    Such a field's metadata has the `names` that there can be, and the `kind` of their settings.
    """
    if "names" in field.metadata:
        possible = {name: field.metadata["kind"]() for name in field.metadata["names"]}
        return {**possible, **(value or {})}
    return dict(value) if is_settings_mapping(value) else {}


class _Leaf(NamedTuple):
    """A field that can be given on a command line: its value, its types, and what it is."""

    value: Any
    kinds: tuple[Any, ...]
    doc: str


def describe(settings: Any, prefix: str) -> dict[str, _Leaf]:
    """Returns what can be given on a command line, by the name of its flag."""
    hints = _hints(type(settings))
    docs = _attribute_docs(type(settings))
    leaves: dict[str, _Leaf] = {}
    for field in setting_fields(settings):
        value, name = getattr(settings, field.name), f"{prefix}.{field.name}"
        if dataclasses.is_dataclass(value):
            leaves.update(describe(value, name))
        elif is_settings_tuple(value):
            for part in value:
                leaves.update(describe(part, f"{name}.{part.name}"))
        elif parts := _by_name(field, value):
            for key, part in parts.items():
                if dataclasses.is_dataclass(part):
                    leaves.update(describe(part, f"{name}.{key}"))
        elif not _holds_objects(value):
            every = _kinds(hints.get(field.name, type(value)))
            kinds = tuple(kind for kind in every if kind is not Callable)
            is_function = callable(value) or (kinds != every and set(kinds) <= {type(None)})
            if not is_function and all(kind in (*SCALARS, tuple, type(None)) for kind in kinds):
                leaves[name] = _Leaf(value, kinds, docs.get(field.name, _text(kinds)))
    return leaves


def _holds_objects(value: Any) -> bool:
    """Returns whether a tuple holds dataclasses or functions, which no flag can give."""
    parts = value if isinstance(value, tuple) else ()
    return any(dataclasses.is_dataclass(x) or callable(x) or _holds_objects(x) for x in parts)


def _hints(settings: type) -> dict[str, Any]:
    """Returns the types of a dataclass's fields, without those whose names are not known here.

    Annotations may be text (`from __future__ import annotations`) with names that only a type
    checker imports, or of a script whose classes were sent here without its other names.
    """
    names = dict(vars(typing))
    for cls in reversed(settings.__mro__):
        names.update(vars(sys.modules.get(cls.__module__, typing)))
    hints: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        alone = types.SimpleNamespace(__annotations__={field.name: field.type})
        with contextlib.suppress(Exception):  # its text may be any expression
            hints.update(typing.get_type_hints(alone, names))
    return hints


def _attribute_docs(settings: type) -> dict[str, str]:
    """Returns the entries of the "Attributes" sections of a class and its bases, by name."""
    docs: dict[str, str] = {}
    for cls in reversed(settings.__mro__):
        section = inspect.cleandoc(cls.__doc__ or "").partition("\nAttributes:\n")[2]
        for names, text in _ATTRIBUTE.findall(section.partition("\n\n")[0]):
            docs.update(dict.fromkeys(names.split(", "), " ".join(text.split())))
    return docs


def _kinds(hint: Any) -> tuple[Any, ...]:
    """Returns the types that a hint allows: (float, NoneType) for `float | None`."""
    if typing.get_origin(hint) is tuple:
        plain = all(arg in (*SCALARS, Any, ...) for arg in typing.get_args(hint))
        return (tuple if plain else object,)
    if typing.get_origin(hint) is typing.Literal:
        return tuple(dict.fromkeys(map(type, typing.get_args(hint))))
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return tuple(kind for arg in typing.get_args(hint) for kind in _kinds(arg))
    return (typing.get_origin(hint) or hint,)


def _text(kinds: tuple[Any, ...]) -> str:
    return " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)


class _Infinities(ast.NodeTransformer):
    """Replaces `inf`, as Python prints an infinity, and `math.inf`, which are no literals."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """See `ast.NodeTransformer`."""
        return ast.Constant(math.inf) if node.id == "inf" else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """See `ast.NodeTransformer`."""
        return ast.Constant(math.inf) if ast.unparse(node) == "math.inf" else node


class SettingParser(flags.ArgumentParser[Any]):
    """Parses a Python literal or infinity, or else a string, of one of the given types."""

    def __init__(self, kinds: tuple[Any, ...]):
        """Args: kinds: the types."""
        self._kinds = kinds
        self.syntactic_help = _text(kinds)

    def parse(self, argument: Any) -> Any:
        """Raises ValueError, which absl turns into one line with the flag's name."""
        value = argument
        if isinstance(argument, str):
            try:
                tree = ast.parse(argument.strip(), mode="eval")
                value = ast.literal_eval(_Infinities().visit(tree))
            except (ValueError, SyntaxError):  # a bare word is a string
                value = {"true": True, "false": False}.get(argument.lower(), argument)
        if isinstance(value, list):
            value = tuple(value)
        if isinstance(value, float) and float not in self._kinds and value.is_integer():
            value = int(value)  # 1e6 for an integer
        if type(value) in self._kinds:
            return value
        if type(value) is int and float in self._kinds and abs(value) <= sys.float_info.max:
            return float(value)
        if tuple in self._kinds and type(value) in (int, float):
            return (value,)
        if str in self._kinds and isinstance(argument, str):
            return argument
        raise ValueError(f"expected {_text(self._kinds)}, got {argument!r}")
