"""Export of trained weights."""

import os
from typing import Optional

from shale import _c

_TYPES = {"F32": 0, "BF16": 1, "F16": 2}


def _number(type):  # pylint: disable=redefined-builtin
    if type not in _TYPES:
        raise ValueError(f"type is {type!r}; allowed: {', '.join(_TYPES)}")
    return _TYPES[type]


def export(folder: os.PathLike, file: os.PathLike, type: str = "F32",  # pylint: disable=redefined-builtin
           base: Optional[os.PathLike] = None) -> None:
    """Writes the parameters of a checkpoint, or of the newest intact one in a folder of checkpoints, to a safetensors
    file, as "F32", or rounded to "BF16" or "F16". If the checkpoint holds adapters alone, `base` is the folder of their
    base, unless that is where the run had it."""
    _c.call("shale_export_parameters_with_base", os.fsencode(folder), None if base is None else os.fsencode(base),
            _number(type), os.fsencode(file))


def export_adapter(folder: os.PathLike, out: os.PathLike,
                   type: str = "F32") -> None:  # pylint: disable=redefined-builtin
    """Writes the adapters of a checkpoint, or of the newest intact one in a folder of checkpoints, as a folder that
    PEFT loads on top of their base. The folder `out` must not exist, or be empty."""
    _c.call("shale_export_adapter", os.fsencode(folder), _number(type), os.fsencode(out))
