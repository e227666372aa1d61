"""Which settings a sweep tries: all combinations of a grid, with random draws."""

import ast
import itertools
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from distrl.errors import ConfigError
from distrl.field_checks import choose_from

_RANGE = re.compile(r"(\w+):([^:,]+):([^:,]+)")
_OPENING, _CLOSING, _QUOTES = "([{", ")]}", "\"'"
_EXACT = 2**53  # below it, a float has each whole number
_DIGITS = 4  # digits of a drawn number


Key = tuple[tuple[str, str], ...]


class Range(NamedTuple):
    """A distribution of numbers.

    Attributes:
      kind: a key of `KINDS`.
      low, high: the bounds, which belong to it.
    """

    kind: str
    low: float
    high: float


KINDS: Mapping[str, Callable[[random.Random, Range], float]] = {
    "uniform": lambda rng, r: rng.uniform(r.low, r.high),
    "log": lambda rng, r: math.exp(rng.uniform(math.log(r.low), math.log(r.high))),
    "int": lambda rng, r: rng.randint(int(r.low), int(r.high)),
    "logint": lambda rng, r: int(
        math.exp(rng.uniform(math.log(r.low), math.log(math.floor(r.high) + 1)))
    ),
}
"""How numbers are drawn, by the word before their range."""

_WHOLE, _POSITIVE = ("int", "logint"), ("log", "logint")


class Search(NamedTuple):
    """The settings to try. Values are words of a command line.

    Attributes:
      grid: values by flag; all of their combinations are tried.
      random: a range, or values to choose from, by flag.
      draws: number of draws, each tried with each combination of the grid; 1 without `random`.
      seed: root of the draws.
    """

    grid: dict[str, list[str]]
    random: dict[str, Range | list[str]]
    draws: int = 1
    seed: int = 0

    def settings(self) -> list[dict[str, str]]:
        """Returns the words of each combination by flag, equal ones once.

        More draws, or more ranges, leave those before as they were: each flag has its own draws.
        """
        drawn = {name: self._draws(name, what) for name, what in self.random.items()}
        draws = [{name: words[k] for name, words in drawn.items()} for k in range(self.draws)]
        grid = [dict(zip(self.grid, values)) for values in itertools.product(*self.grid.values())]
        unique: dict[Key, dict[str, str]] = {}
        for settings in ({**point, **draw} for draw in draws for point in grid):
            unique.setdefault(key(settings), settings)
        return list(unique.values())

    def _draws(self, name: str, what: Range | list[str]) -> list[str]:
        rng = random.Random(f"{self.seed}/{name}")
        if isinstance(what, list):
            return [rng.choice(what) for _ in range(self.draws)]
        return [_word(KINDS[what.kind](rng, what), what) for _ in range(self.draws)]


def key(settings: Mapping[str, str]) -> Key:
    """Returns a key that is equal for settings that differ only in spelling, as 1e-3 and 0.001."""
    return tuple(sorted((name, _value(word)) for name, word in settings.items()))


def _value(word: str) -> str:
    """Returns a canonical spelling of a value: if it is a number, the float's, if that is exact."""
    try:
        value = ast.literal_eval(word)
    except (ValueError, TypeError, SyntaxError):
        return word
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return repr(float(value) if is_number and abs(value) < _EXACT else value)


def _word(number: float, within: Range) -> str:
    """Returns a drawn number in a few digits, unless these lie outside of its range."""
    number = min(max(number, within.low), within.high)
    if within.kind in _WHOLE:
        return str(int(number))
    text = f"{number:.{_DIGITS}g}"
    return text if within.low <= float(text) <= within.high else repr(number)


def make_search(
    grid: Sequence[str], randoms: Sequence[str], trials: int | None, seed: int
) -> Search:
    """Returns the search that the flags describe.

    Args:
      grid: values of --grid, `NAME=VALUE,VALUE`.
      randoms: values of --random, `NAME=KIND:LOW:HIGH` or `NAME=VALUE,VALUE`.
      trials: value of --trials.
      seed: root of the draws.

    Raises:
      ConfigError: one cannot be read, or a flag is named twice.
    """
    points = {name: split_values(text) for name, text in _named(grid, "--grid")}
    ranges = {name: _distribution(name, text) for name, text in _named(randoms, "--random")}
    for name in points.keys() & ranges.keys():
        raise ConfigError(f"--random {name}: --grid names it too")
    if ranges and trials is None:
        raise ConfigError("--random: say how many draws to try, as in --trials=10")
    if trials is not None and not ranges:
        raise ConfigError("--trials is the number of draws of --random, and no --random is given")
    if trials is not None and trials < 1:
        raise ConfigError(f"--trials must be 1 or more, got {trials}")
    return Search(points, ranges, trials or 1, seed)


def split_values(text: str) -> list[str]:
    """Returns the parts of a list with commas, of which those in brackets or quotes don't count."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in _QUOTES:
            quote = letter
        elif letter in _OPENING + _CLOSING:
            depth += 1 if letter in _OPENING else -1
        elif letter == "," and not depth:
            parts.append("")
            continue
        parts[-1] += letter
    return [part.strip() for part in parts]


def _named(texts: Sequence[str], flag: str) -> list[tuple[str, str]]:
    """Returns, by name of a flag, the text that is given for it."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, _, values = text.lstrip("-").partition("=")
        if not name or not values:
            raise ConfigError(
                f"{flag} {text}: write {flag} NAME=..., as in {flag} "
                "config.agent.learning_rate=1e-3,3e-4"
            )
        if name in pairs:
            raise ConfigError(f"{flag} {name}: named twice")
        pairs[name] = values
    return list(pairs.items())


def _distribution(name: str, text: str) -> Range | list[str]:
    match = _RANGE.fullmatch(text)
    bounds = [] if match is None else [_number(match[2]), _number(match[3])]
    if match is None or None in bounds:
        return split_values(text)
    kind, (low, high) = match[1], (float(bound or 0.0) for bound in bounds)
    what = f"--random {name}={text}"
    if kind not in KINDS:
        raise ConfigError(f"{what}: no distribution {kind!r}{choose_from(kind, KINDS)}")
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(f"{what}: the first bound must be less than the second")
    if kind in _POSITIVE and low <= 0:
        raise ConfigError(f"{what}: the logarithm needs bounds above 0")
    if kind in _WHOLE and not (low.is_integer() and high.is_integer()):
        raise ConfigError(f"{what}: the bounds must be whole numbers")
    return Range(kind, low, high)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
