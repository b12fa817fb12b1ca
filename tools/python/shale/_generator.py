"""Generation."""

import ctypes
import os
from typing import Callable, List, Optional, Sequence, Union

from shale import _c


class Generator:
    """Generates tokens with the weights of a checkpoint, or of the newest intact one in a folder of checkpoints.
    `model` is the Model of a run whose program brought it."""

    def __init__(self, folder: os.PathLike, model=None):
        self._model = model
        self._handle = _c.Handle("generator")
        _c.call("shale_generator_create", os.fsencode(folder), model.struct() if model else None,
                ctypes.byref(self._handle.value), callbacks=[model.callbacks] if model else ())

    def encode(self, text: str) -> List[int]:
        """Returns the tokens of a text, if the model was trained on text."""
        needed = ctypes.c_size_t()
        data = text.encode()
        _c.call("shale_generator_encode", self._handle.value, data, None, 0, ctypes.byref(needed))
        tokens = (ctypes.c_int32 * needed.value)()
        _c.call("shale_generator_encode", self._handle.value, data, tokens, needed.value, ctypes.byref(needed))
        return list(tokens)

    def generate(self, prompt: Union[str, Sequence[int]], count: int, temperature: float = 0.8, top_k: int = 40,
                 seed: int = 1, on_token: Optional[Callable[[int], object]] = None) -> List[int]:
        """Returns up to `count` tokens drawn after the prompt. Calls `on_token` with each as it is drawn, and ends
        early if that returns True. `temperature` 0 always takes the most likely token; `top_k` 0 draws among all."""
        tokens = self.encode(prompt) if isinstance(prompt, str) else list(prompt)
        drawn, raised = [], []

        def call(_, token):
            drawn.append(token)
            try:
                return int(on_token(token) is True) if on_token else 0
            except BaseException as exception:  # pylint: disable=broad-except
                raised.append(exception)
                return 1

        sampling = _c.Sampling(temperature=temperature, top_k=top_k, seed=seed)
        _c.call("shale_generator_generate", self._handle.value, (ctypes.c_int32 * len(tokens))(*tokens), len(tokens),
                count, ctypes.byref(sampling), _c.TokenFunction(call), None)
        if raised:
            raise raised[0]
        return drawn

    def close(self) -> None:
        self._handle.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
