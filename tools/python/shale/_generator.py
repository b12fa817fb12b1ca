"""Generation."""

import ctypes
import os
from typing import Callable, List, Optional, Sequence, Union

from shale import _c
from shale._stop import Listener, call_on_thread


def draw(function, handle, prompt, count, on_token, **sampling):
    """Calls a function of the C interface that draws tokens, and returns them."""
    drawn = []

    def take(token):
        drawn.append(token)
        return on_token is not None and on_token(token) is True

    listener = Listener(take)
    call = _c.TokenFunction(lambda _, token: int(listener.ask(token)))
    call_on_thread(function, handle, (ctypes.c_int32 * len(prompt))(*prompt), len(prompt), count,
                   ctypes.byref(_c.Sampling(**sampling)), call, None, listener=listener)
    return drawn


class Generator:
    """Generates tokens, and text, with the weights of a checkpoint, or of the newest intact one in a folder of
    checkpoints. `model` is the Model of a run whose program brought it. `tokenizer` is a folder with a tokenizer.json:
    a Hugging Face folder, or `hf` in the folder of a run. Without one, each byte of text is a token, if the model was
    trained like that. If the checkpoint holds adapters alone, `base` is the folder of their base, unless that is where
    the run had it."""

    def __init__(self, folder: os.PathLike, model=None, tokenizer: Optional[os.PathLike] = None,
                 base: Optional[os.PathLike] = None):
        self._handle = _c.Handle("generator", kept=model)
        call_on_thread("shale_generator_create_with_base", os.fsencode(folder), model.struct() if model else None,
                       None if base is None else os.fsencode(base), ctypes.byref(self._handle.value),
                       callbacks=[model.callbacks] if model else ())
        if tokenizer is not None:
            _c.call("shale_generator_set_tokenizer", self._handle.value, os.fsencode(tokenizer))

    def encode(self, text: str) -> List[int]:
        """Returns the tokens of a text."""
        needed = ctypes.c_size_t()
        data = text.encode()
        _c.call("shale_generator_encode", self._handle.value, data, None, 0, ctypes.byref(needed))
        tokens = (ctypes.c_int32 * needed.value)()
        _c.call("shale_generator_encode", self._handle.value, data, tokens, needed.value, ctypes.byref(needed))
        return list(tokens)

    def generate(self, prompt: Union[str, Sequence[int]], count: int, temperature: float = 0.8, top_k: int = 40,
                 seed: int = 1, on_token: Optional[Callable[[int], object]] = None, *, top_p: float = 1,
                 min_p: float = 0, repetition_penalty: float = 1) -> List[int]:
        """Returns up to `count` tokens drawn after the prompt. Calls `on_token` with each as it is drawn, and ends
        early if that returns True. `temperature` 0 always takes the most likely token; `top_k` 0 draws among all.
        `top_p` draws among the most likely tokens whose probabilities sum to p, and `min_p` among those at least p
        times as likely as the most likely. `repetition_penalty` above 1 makes tokens less likely that the text has."""
        tokens = self.encode(prompt) if isinstance(prompt, str) else prompt
        return draw("shale_generator_generate", self._handle.value, tokens, count, on_token, temperature=temperature,
                    top_k=top_k, seed=seed, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty)

    def generate_text(self, prompt: str, count: int, temperature: float = 0.8, top_k: int = 40, seed: int = 1,
                      on_text: Optional[Callable[[str], object]] = None, *, stop: Sequence[str] = (), top_p: float = 1,
                      min_p: float = 0, repetition_penalty: float = 1) -> str:
        """Returns the text of up to `count` tokens drawn after the prompt, as `generate` draws them. It ends where one
        of the texts in `stop` begins, however many tokens that comes in, or with the tokenizer's end of text. Calls
        `on_text` with each piece as soon as it is certain, which never shows a part of a stop text, and ends early if
        that returns True."""
        pieces = []

        def take(piece):
            pieces.append(piece.decode())
            return on_text is not None and on_text(pieces[-1]) is True

        listener = Listener(take)
        call = _c.TextFunction(lambda _, text, size: int(listener.ask(ctypes.string_at(text, size))))
        stops = [text.encode() for text in stop]
        sampling = _c.Sampling(temperature=temperature, top_k=top_k, seed=seed, top_p=top_p, min_p=min_p,
                               repetition_penalty=repetition_penalty)
        call_on_thread("shale_generator_generate_text", self._handle.value, prompt.encode(), count,
                       ctypes.byref(sampling), (ctypes.c_char_p * len(stops))(*stops), len(stops), call, None,
                       listener=listener)
        return "".join(pieces)

    def close(self) -> None:
        self._handle.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
