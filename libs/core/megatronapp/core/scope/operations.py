"""The parts of an expression as values. `str()` of each is its canonical text."""

from __future__ import annotations

from dataclasses import dataclass

from megatronapp.core.str_enum import StrEnum


class Reducer(StrEnum):
    MEAN = "mean"
    MAX = "max"
    MIN = "min"
    ABSMAX = "absmax"
    FARTHEST = "farthest"
    """From zero, with its sign."""
    STD = "std"
    L2 = "l2"
    SUM = "sum"
    ENTROPY = "entropy"
    """Σ −p·ln p, nats: of probabilities."""


SHARD = "shard"
"""Of what each data-parallel rank has some cells of, wherever they lie: those of the others are masked in its part."""
AXES = ("batch", "token", "query", "key", "head", "group", "chan", "expert", "vocab", "out", "in", SHARD)
STATISTICS = ("mean", "std", "min", "max", "absmax", "l2", "zero", "nonfinite", "count")
"""Beside percentiles, `p01` to `p99` and `p50`, of finite values."""
CONDITIONS = ("absmax", "max", "min", "mean", "std")


@dataclass(frozen=True, slots=True)
class Slice:
    """As Python's, from `start` to `stop` by `step`, which is positive."""

    start: int | None = None
    stop: int | None = None
    step: int | None = None

    def __str__(self) -> str:
        if self == Slice():
            return "*"
        ends = ":".join("" if end is None else str(end) for end in (self.start, self.stop))
        return ends if self.step is None else f"{ends}:{self.step}"

    def of(self, size: int) -> range:
        """Raises nothing: ends beyond `size` are cut as Python cuts them."""
        return range(size)[slice(self.start, self.stop, self.step)]


Pick = int | Slice


@dataclass(frozen=True, slots=True)
class Selector:
    site: str
    layers: tuple[Pick, ...] = ()
    """Empty: a site that belongs to no layer."""

    def __str__(self) -> str:
        return f"layers[{','.join(map(str, self.layers))}].{self.site}" if self.layers else self.site

    def numbers(self, layers: int) -> list[int]:
        """Which of a model's layers are meant, ascending."""
        chosen: set[int] = set()
        for pick in self.layers:
            if isinstance(pick, Slice):
                chosen.update(pick.of(layers))
            elif -layers <= pick < layers:
                chosen.add(pick % layers)
        return sorted(chosen)


@dataclass(frozen=True, slots=True)
class Take:
    """Some of an axis: `head(3)`, which also drops the axis; `token(-128:)`, `last(256)`."""

    axis: str
    pick: Pick

    def __str__(self) -> str:
        return f"{self.axis}({self.pick})"


@dataclass(frozen=True, slots=True)
class Last:
    """The last rows: of `query` where there is one, else of `token`."""

    count: int

    def __str__(self) -> str:
        return f"last({self.count})"


@dataclass(frozen=True, slots=True)
class Pool:
    """An axis in at most `bins` bins, as equal as can be."""

    axis: str
    bins: int
    how: Reducer

    def __str__(self) -> str:
        return f"pool({self.axis},{self.bins},{self.how})"


@dataclass(frozen=True, slots=True)
class Reduce:
    """An axis in one value, and gone: `mean(chan)`; `norm(chan)` is `l2(chan)`."""

    how: Reducer
    axis: str

    def __str__(self) -> str:
        return f"{self.how}({self.axis})"


@dataclass(frozen=True, slots=True)
class Stats:
    """Statistics of finite values along a new last axis; `over` one axis, else over all."""

    names: tuple[str, ...]
    over: str = ""

    def __str__(self) -> str:
        over = (f"over={self.over}",) if self.over else ()
        return f"stats({','.join(self.names + over)})"


@dataclass(frozen=True, slots=True)
class Hist:
    """Counts of finite values in equal bins: of asinh(x / 0.001) over ±10⁴, or of x from `low` to `high`. What is
    beyond falls into the first and last bin."""

    bins: int
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        scale = "asinh" if self.low is None else f"{_number(self.low)},{_number(self.high or 0.0)}"
        return f"hist({self.bins},{scale})"


@dataclass(frozen=True, slots=True)
class TopK:
    """The k largest along the last axis with their indexes, and the log-sum-exp of all of it."""

    k: int

    def __str__(self) -> str:
        return f"topk({self.k})"


@dataclass(frozen=True, slots=True)
class Elementwise:
    name: str
    """abs, or sqrt, which keeps the sign"""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class LogitLens:
    """Rows of the residual through final norm and output layer: the k most probable tokens, as by `topk`."""

    k: int

    def __str__(self) -> str:
        return f"logitlens({self.k})"


@dataclass(frozen=True, slots=True)
class Pca:
    """Projections of rows on their first principal components; `pinned`: of the basis found first."""

    components: int
    pinned: bool = False

    def __str__(self) -> str:
        return f"pca({self.components}{',basis=pinned' if self.pinned else ''})"


@dataclass(frozen=True, slots=True)
class Compare:
    """diff, cos or kl along the last axis, against the same expression of another generation."""

    how: str
    baseline: str

    def __str__(self) -> str:
        return f"{self.how}({self.baseline})"


@dataclass(frozen=True, slots=True)
class Replicas:
    """Each data-parallel replica by itself, along a new first axis, in place of all together. It comes last."""

    def __str__(self) -> str:
        return "replicas"


@dataclass(frozen=True, slots=True)
class Every:
    """Only steps whose number divides by it."""

    steps: int

    def __str__(self) -> str:
        return f"every({self.steps})"


@dataclass(frozen=True, slots=True)
class When:
    """Only frames that have non-finite values, or a statistic beyond a bound."""

    statistic: str
    sign: str = ""
    bound: float = 0.0

    def __str__(self) -> str:
        return f"when({self.statistic}{self.sign}{_number(self.bound) if self.sign else ''})"


Operation = (
    Take
    | Last
    | Pool
    | Reduce
    | Stats
    | Hist
    | TopK
    | Elementwise
    | LogitLens
    | Pca
    | Compare
    | Replicas
    | Every
    | When
)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
