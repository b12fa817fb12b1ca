"""Export of trained weights."""

import os

from shale import _c

_TYPES = {"F32": 0, "BF16": 1, "F16": 2}


def export(folder: os.PathLike, file: os.PathLike, type: str = "F32") -> None:  # pylint: disable=redefined-builtin
    """Writes the parameters of a checkpoint, or of the newest intact one in a folder of checkpoints, to a safetensors
    file, as "F32", or rounded to "BF16" or "F16"."""
    if type not in _TYPES:
        raise ValueError(f"type is {type!r}; allowed: {', '.join(_TYPES)}")
    _c.call("shale_export_parameters", os.fsencode(folder), _TYPES[type], os.fsencode(file))
