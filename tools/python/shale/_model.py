"""Models of one's own."""

import ctypes
from dataclasses import dataclass
from typing import Callable, Optional, Sequence

from shale import _c

_INITIALIZERS = {"normal": 0, "ones": 1, "zeros": 2}


@dataclass(frozen=True)
class GraphOptions:
    """What a model is built for."""

    micro_batch: int  # In sequences.
    sequence_length: int  # In positions.
    vocabulary: int  # 0: there is none, or it is not known.


class Builder:
    """Builds the graph of a model: adds groups and parameters, begins and ends units, and adds layers. Groups,
    parameters and tensors are numbers. A misuse is an error of the call that wanted the model. shale_model.h says more
    of each."""

    def __init__(self, handle, options):
        self._handle = handle
        self.options = options

    def _call(self, name, *arguments):
        return getattr(_c.library(), name)(self._handle, *arguments)

    def group(self, name: str) -> int:
        """Adds a flat group, whose parameters are gathered and reduced together."""
        return self._call("shale_builder_add_group", name.encode())

    def parameter(self, group: int, name: str, shape: Sequence[int], initializer: str = "normal",
                  standard_deviation: float = 0.02) -> int:
        """Adds a parameter that begins with values drawn from "normal", with "ones" or with "zeros"."""
        if initializer not in _INITIALIZERS:
            raise ValueError(f"initializer is {initializer!r}; allowed: {', '.join(_INITIALIZERS)}")
        return self._call("shale_builder_add_parameter", group, name.encode(), _sizes(shape), len(shape),
                          _INITIALIZERS[initializer], standard_deviation)

    def begin_unit(self, name: str, layer: Optional[int] = None) -> None:
        """Begins a unit. `layer` is the index of a block."""
        self._call("shale_builder_begin_unit", name.encode(), _id(layer))

    def unit_input(self) -> int:
        """Returns the output of the unit before."""
        return self._call("shale_builder_unit_input")

    def end_unit(self, output: int) -> None:
        self._call("shale_builder_end_unit", output)

    def end_last_unit(self) -> None:
        """Ends the unit with the loss."""
        self._call("shale_builder_end_last_unit")

    def embedding(self, weight: int, positions: Optional[int] = None) -> int:
        return self._call("shale_layer_embedding", weight, _id(positions))

    def features(self, features: int) -> int:
        return self._call("shale_layer_features", features)

    def linear(self, x: int, weight: int, bias: Optional[int] = None, name: str = "linear") -> int:
        return self._call("shale_layer_linear", x, weight, _id(bias), name.encode())

    def norm(self, x: int, weight: int, bias: Optional[int] = None, epsilon: float = 1e-5, name: str = "norm") -> int:
        """LayerNorm if there is a bias, else RMSNorm."""
        return self._call("shale_layer_norm", x, weight, _id(bias), epsilon, name.encode())

    def group_norm(self, x: int, groups: int, weight: int, bias: int, epsilon: float = 1e-5,
                   name: str = "norm") -> int:
        return self._call("shale_layer_group_norm", x, groups, weight, bias, epsilon, name.encode())

    def head_norm(self, x: int, weight: int, y: int, epsilon: float = 1e-5, name: str = "norm") -> None:
        self._call("shale_layer_head_norm", x, weight, epsilon, y, name.encode())

    def reshape(self, x: int, shape: Sequence[int]) -> int:
        return self._call("shale_layer_reshape", x, _sizes(shape), len(shape))

    def slice(self, x: int, axis: int, begin: int, count: int) -> int:
        return self._call("shale_layer_slice", x, axis, begin, count)

    def split_last(self, x: int, count: int) -> int:
        return self._call("shale_layer_split_last", x, count)

    def split_first(self, x: int, count: int) -> int:
        return self._call("shale_layer_split_first", x, count)

    def rope(self, x: int, theta: float = 10000) -> None:
        self._call("shale_layer_rope", x, theta)

    def attention(self, q: int, k: int, v: int, window: int = 0) -> int:
        """Causal attention."""
        return self._call("shale_layer_attention", q, k, v, window)

    def bidirectional_attention(self, q: int, k: int, v: int) -> int:
        """Attention in which a query sees all tokens of its sequence. Such a model cannot generate."""
        return self._call("shale_layer_bidirectional_attention", q, k, v)

    def swiglu(self, gate_up: int) -> int:
        return self._call("shale_layer_swiglu", gate_up)

    def gelu(self, x: int, tanh: bool = True) -> int:
        return self._call("shale_layer_gelu", x, int(tanh))

    def add(self, a: int, b: int, name: str = "sum") -> int:
        return self._call("shale_layer_add", a, b, name.encode())

    def linear_cross_entropy(self, x: int, weight: int, bias: Optional[int] = None) -> None:
        self._call("shale_layer_linear_cross_entropy", x, weight, _id(bias))

    def mean_squared_error(self, x: int) -> None:
        self._call("shale_layer_mean_squared_error", x)


class Model:
    """A model: a function that builds its graph, with a name and a digest that checkpoints record.

    `digest` is one line that differs if the function builds another graph, such as "width=64 blocks=3". `layers` is the
    number of blocks, the units with an index. The function may be called several times, and must always build the same
    graph for the same options.
    """

    def __init__(self, build: Callable[[Builder], None], name: str, digest: str, layers: int = 0,
                 last_target_only: bool = False, vocabulary: int = 0):
        self.callbacks = _c.Callbacks()
        self._name, self._digest = name.encode(), digest.encode()

        def call(_, handle, options, error):  # pylint: disable=unused-argument
            given = options.contents
            build(Builder(handle, GraphOptions(given.micro_batch, given.sequence_length, given.vocabulary)))

        self._struct = _c.Model(name=self._name, digest=self._digest, layers=layers,
                                last_target_only=int(last_target_only), vocabulary=vocabulary,
                                build=self.callbacks.pointer(_c.BuildFunction, call))

    def struct(self):
        return ctypes.pointer(self._struct)


def model(digest: str, name: Optional[str] = None, layers: int = 0, last_target_only: bool = False,
          vocabulary: int = 0):
    """Makes a Model of the function that follows, named after it unless `name` is given."""
    return lambda build: Model(build, name or build.__name__, digest, layers, last_target_only, vocabulary)


def _id(number):
    return _c.NONE if number is None else number


def _sizes(shape):
    return (ctypes.c_int64 * len(shape))(*shape)
