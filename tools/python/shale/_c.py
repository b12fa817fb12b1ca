"""The C interface (shale.h, shale_model.h) through ctypes. A test compares the declarations with the headers."""

import ctypes
import os
from ctypes import (CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t,
                    c_uint32, c_uint64, c_void_p, byref)

from shale._errors import error_of

API_VERSION = 1
NONE = -1
MODEL_FROM_PROGRAM = 1
OUT_OF_RANGE = 11
UNKNOWN = 2


class _Sized(Structure):
    """A struct that begins with its size."""

    def __init__(self, **members):
        super().__init__(size=ctypes.sizeof(self), **members)


class Error(_Sized):
    _fields_ = [("size", c_size_t), ("code", c_int32), ("message", c_char * 8192)]


class Sample(_Sized):
    _fields_ = [("size", c_size_t), ("sequence_length", c_int64), ("inputs", POINTER(c_int32)),
                ("features", POINTER(c_float)), ("targets", POINTER(c_int32)), ("target_values", POINTER(c_float)),
                ("weights", POINTER(c_float)), ("position_ids", POINTER(c_int32))]


# Function pointers in structs are void pointers, because a ctypes function must be kept alive by hand anyway.
class Data(_Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("samples", c_int64), ("sequence_length", c_int64),
                ("vocabulary", c_int64), ("features", c_int64), ("target_values", c_int64), ("has_weights", c_int32),
                ("in_order", c_int32), ("user", c_void_p), ("read", c_void_p), ("save", c_void_p),
                ("restore", c_void_p), ("has_position_ids", c_int32)]


class GraphOptions(_Sized):
    _fields_ = [("size", c_size_t), ("micro_batch", c_int64), ("sequence_length", c_int64), ("vocabulary", c_int64)]


class Model(_Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("digest", c_char_p), ("layers", c_int64),
                ("last_target_only", c_int32), ("vocabulary", c_int64), ("user", c_void_p), ("build", c_void_p)]


class PlanSummary(_Sized):
    _fields_ = [("size", c_size_t), ("ranks", c_int64), ("micro_batches", c_int64), ("parameters", c_int64),
                ("arena_bytes", c_int64), ("peak_bytes", c_int64), ("persistent_bytes", c_int64),
                ("host_bytes", c_int64), ("budget_bytes", c_int64), ("sent_bytes", c_int64),
                ("flops_per_token", c_double)]


class AdmissionOptions(_Sized):
    _fields_ = [("size", c_size_t), ("device", c_int32), ("hardware_threads", c_int64), ("most_ranks", c_int64),
                ("budget_bytes", c_int64), ("host_budget_bytes", c_int64), ("vocabulary", c_int64),
                ("seconds", c_double), ("memory_bytes", c_int64), ("job_bytes", c_int64), ("stop", c_uint64)]


class AdmissionSummary(_Sized):
    _fields_ = [("size", c_size_t), ("verdict", c_int32), ("arena_bytes", c_int64), ("host_bytes", c_int64),
                ("ways_out", c_int64), ("search_ended_early", c_int32)]


class WayOut(_Sized):
    _fields_ = [("size", c_size_t), ("overrides", POINTER(c_char_p)), ("override_count", c_size_t),
                ("arena_bytes", c_int64), ("host_bytes", c_int64), ("recompute_flops", c_double),
                ("caveat", c_char_p)]


class Check(_Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("against", c_char_p), ("outcome", c_int32),
                ("difference", c_double), ("tolerance", c_double), ("remark", c_char_p)]


class VerifyOptions(_Sized):
    _fields_ = [("size", c_size_t), ("model", POINTER(Model)), ("data", POINTER(Data)), ("seconds", c_double),
                ("temporary_folder", c_char_p), ("stop", c_uint64), ("on_check", c_void_p),
                ("on_check_user", c_void_p)]


class VerificationSummary(_Sized):
    _fields_ = [("size", c_size_t), ("passed", c_int32), ("checks", c_int64), ("failed", c_int64),
                ("not_run", c_int64), ("seconds", c_double)]


class TrainerOptions(_Sized):
    _fields_ = [("size", c_size_t), ("checkpoint_folder", c_char_p), ("resume", c_int32), ("resume_path", c_char_p),
                ("model", POINTER(Model)), ("data", POINTER(Data)), ("evaluation_data", POINTER(Data)),
                ("on_event", c_void_p), ("on_event_user", c_void_p), ("event_descriptor", c_int32)]


class StepReport(_Sized):
    _fields_ = [("size", c_size_t), ("step", c_int64), ("tokens", c_int64), ("step_tokens", c_int64),
                ("loss", c_double), ("step_weight", c_double), ("gradient_norm", c_double),
                ("learning_rate", c_double), ("updated", c_int32), ("seconds", c_double),
                ("tokens_per_second", c_double), ("peak_bytes_planned", c_int64), ("peak_bytes_measured", c_int64),
                ("loss_scale", c_double), ("skips", c_int64)]


class EvaluationReport(_Sized):
    _fields_ = [("size", c_size_t), ("step", c_int64), ("loss", c_double), ("tokens", c_int64)]


class TrainerState(_Sized):
    _fields_ = [("size", c_size_t), ("steps_done", c_int64), ("total_steps", c_int64), ("done", c_int32),
                ("has_evaluation_data", c_int32), ("resumed_from_step", c_int64), ("parameter_count", c_int64)]


class Parameter(_Sized):
    _fields_ = [("size", c_size_t), ("name", c_char * 256), ("elements", c_int64), ("dimensions", c_int32),
                ("shape", c_int64 * 8)]


class Sampling(_Sized):
    _fields_ = [("size", c_size_t), ("temperature", c_double), ("top_k", c_int64), ("seed", c_uint64),
                ("repetition_penalty", c_double), ("top_p", c_double), ("min_p", c_double)]


STRUCTS = {"shale_error": Error, "shale_sample": Sample, "shale_data": Data, "shale_graph_options": GraphOptions,
           "shale_model": Model, "shale_plan_summary": PlanSummary, "shale_admission_options": AdmissionOptions,
           "shale_admission_summary": AdmissionSummary, "shale_way_out": WayOut, "shale_check": Check,
           "shale_verify_options": VerifyOptions, "shale_verification_summary": VerificationSummary,
           "shale_trainer_options": TrainerOptions, "shale_step_report": StepReport,
           "shale_evaluation_report": EvaluationReport, "shale_trainer_state": TrainerState,
           "shale_parameter": Parameter, "shale_sampling": Sampling}

# The functions that the engine calls.
ReadFunction = CFUNCTYPE(c_int32, c_void_p, c_int64, POINTER(Sample), POINTER(Error))
SaveFunction = CFUNCTYPE(c_int32, c_void_p, POINTER(c_char), c_size_t, POINTER(c_size_t), POINTER(Error))
RestoreFunction = CFUNCTYPE(c_int32, c_void_p, POINTER(c_char), c_size_t, POINTER(Error))
BuildFunction = CFUNCTYPE(c_int32, c_void_p, c_uint64, POINTER(GraphOptions), POINTER(Error))
CheckFunction = CFUNCTYPE(None, c_void_p, POINTER(Check))
EventFunction = CFUNCTYPE(None, c_void_p, c_char_p)
StepFunction = CFUNCTYPE(c_int32, c_void_p, POINTER(StepReport))
TokenFunction = CFUNCTYPE(c_int32, c_void_p, c_int32)
TextFunction = CFUNCTYPE(c_int32, c_void_p, POINTER(c_char), c_size_t)

_HANDLE = c_uint64
_TEXT = [POINTER(c_char), c_size_t, POINTER(c_size_t)]
_OVERRIDES = [POINTER(c_char_p), c_size_t]
# Functions that return a code and take an error last, by their other arguments.
CALLS = {
    "shale_job_load": [c_char_p, *_OVERRIDES, c_uint32, POINTER(_HANDLE)],
    "shale_job_parse": [c_char_p, c_char_p, *_OVERRIDES, c_uint32, POINTER(_HANDLE)],
    "shale_job_text": [_HANDLE, *_TEXT],
    "shale_job_free": [_HANDLE],
    "shale_stop_create": [POINTER(_HANDLE)],
    "shale_stop_request": [_HANDLE],
    "shale_stop_free": [_HANDLE],
    "shale_plan_create": [_HANDLE, POINTER(Model), POINTER(_HANDLE)],
    "shale_plan_get_summary": [_HANDLE, POINTER(PlanSummary)],
    "shale_plan_text": [_HANDLE, c_int32, *_TEXT],
    "shale_plan_free": [_HANDLE],
    "shale_admit": [c_char_p, c_size_t, *_OVERRIDES, POINTER(AdmissionOptions), POINTER(_HANDLE)],
    "shale_admit_job": [_HANDLE, POINTER(Model), POINTER(AdmissionOptions), POINTER(_HANDLE)],
    "shale_admission_get_summary": [_HANDLE, POINTER(AdmissionSummary)],
    "shale_admission_text": [_HANDLE, c_int32, *_TEXT],
    "shale_admission_get_way_out": [_HANDLE, c_int64, POINTER(WayOut)],
    "shale_admission_free": [_HANDLE],
    "shale_verify": [_HANDLE, POINTER(VerifyOptions), POINTER(_HANDLE)],
    "shale_verification_get_summary": [_HANDLE, POINTER(VerificationSummary)],
    "shale_verification_get_check": [_HANDLE, c_int64, POINTER(Check)],
    "shale_verification_text": [_HANDLE, *_TEXT],
    "shale_verification_free": [_HANDLE],
    "shale_trainer_create": [_HANDLE, POINTER(TrainerOptions), POINTER(_HANDLE)],
    "shale_trainer_step": [_HANDLE, POINTER(StepReport)],
    "shale_trainer_evaluate": [_HANDLE, c_int64, POINTER(EvaluationReport)],
    "shale_trainer_run": [_HANDLE, StepFunction, c_void_p],
    "shale_trainer_save": [_HANDLE, *_TEXT],
    "shale_trainer_request_stop": [_HANDLE],
    "shale_trainer_get_state": [_HANDLE, POINTER(TrainerState)],
    "shale_trainer_job_text": [_HANDLE, *_TEXT],
    "shale_trainer_plan_text": [_HANDLE, c_int32, *_TEXT],
    "shale_trainer_get_parameter": [_HANDLE, c_int64, POINTER(Parameter)],
    "shale_trainer_read_parameter": [_HANDLE, c_char_p, c_int64, POINTER(c_float), c_int64],
    "shale_trainer_write_parameter": [_HANDLE, c_char_p, c_int64, POINTER(c_float), c_int64],
    "shale_trainer_optimizer_states": [_HANDLE, *_TEXT],
    "shale_trainer_optimizer_state_count": [_HANDLE, c_char_p, c_char_p, POINTER(c_int64)],
    "shale_trainer_read_optimizer_state": [_HANDLE, c_char_p, c_char_p, c_int64, POINTER(c_float), c_int64],
    "shale_trainer_write_optimizer_state": [_HANDLE, c_char_p, c_char_p, c_int64, POINTER(c_float), c_int64],
    "shale_trainer_set_learning_rate": [_HANDLE, POINTER(c_double)],
    "shale_trainer_set_data": [_HANDLE, POINTER(Data)],
    "shale_trainer_add_metric": [_HANDLE, c_char_p, c_double],
    "shale_trainer_generate": [_HANDLE, POINTER(c_int32), c_size_t, c_int64, POINTER(Sampling), TokenFunction,
                               c_void_p],
    "shale_trainer_free": [_HANDLE],
    "shale_generator_create": [c_char_p, POINTER(Model), POINTER(_HANDLE)],
    "shale_generator_create_with_base": [c_char_p, POINTER(Model), c_char_p, POINTER(_HANDLE)],
    "shale_generator_set_tokenizer": [_HANDLE, c_char_p],
    "shale_generator_encode": [_HANDLE, c_char_p, POINTER(c_int32), c_size_t, POINTER(c_size_t)],
    "shale_generator_generate": [_HANDLE, POINTER(c_int32), c_size_t, c_int64, POINTER(Sampling), TokenFunction,
                                 c_void_p],
    "shale_generator_generate_text": [_HANDLE, c_char_p, c_int64, POINTER(Sampling), *_OVERRIDES, TextFunction,
                                      c_void_p],
    "shale_generator_free": [_HANDLE],
    "shale_export_parameters": [c_char_p, c_int32, c_char_p],
    "shale_export_parameters_with_base": [c_char_p, c_char_p, c_int32, c_char_p],
    "shale_export_adapter": [c_char_p, c_int32, c_char_p],
}
# Functions of a builder: what they return, and their arguments after the builder.
_I, _L, _D, _S = c_int32, c_int64, c_double, c_char_p
BUILDER_CALLS = {
    "shale_builder_add_group": (_I, [_S]),
    "shale_builder_add_parameter": (_I, [_I, _S, POINTER(_L), _I, _I, _D]),
    "shale_builder_begin_unit": (None, [_S, _I]),
    "shale_builder_unit_input": (_I, []),
    "shale_builder_end_unit": (None, [_I]),
    "shale_builder_end_last_unit": (None, []),
    "shale_layer_embedding": (_I, [_I, _I]),
    "shale_layer_features": (_I, [_L]),
    "shale_layer_linear": (_I, [_I, _I, _I, _S]),
    "shale_layer_norm": (_I, [_I, _I, _I, _D, _S]),
    "shale_layer_group_norm": (_I, [_I, _L, _I, _I, _D, _S]),
    "shale_layer_head_norm": (None, [_I, _I, _D, _I, _S]),
    "shale_layer_reshape": (_I, [_I, POINTER(_L), _I]),
    "shale_layer_slice": (_I, [_I, _I, _L, _L]),
    "shale_layer_split_last": (_I, [_I, _L]),
    "shale_layer_split_first": (_I, [_I, _L]),
    "shale_layer_rope": (None, [_I, _D]),
    "shale_layer_attention": (_I, [_I, _I, _I, _L]),
    "shale_layer_bidirectional_attention": (_I, [_I, _I, _I]),
    "shale_layer_swiglu": (_I, [_I]),
    "shale_layer_gelu": (_I, [_I, _I]),
    "shale_layer_add": (_I, [_I, _I, _S]),
    "shale_layer_linear_cross_entropy": (None, [_I, _I, _I]),
    "shale_layer_mean_squared_error": (None, [_I]),
}

_library = None


def library():
    """Returns the loaded library. Loads it when it is first needed: SHALE_LIBRARY if that is set, else the one in this
    package, else the one that the system finds."""
    global _library
    if _library is not None:
        return _library
    own = os.path.join(os.path.dirname(__file__), "lib", "libshale.so")
    path = os.environ.get("SHALE_LIBRARY") or (own if os.path.exists(own) else "libshale.so.0")
    loaded = ctypes.CDLL(path)
    loaded.shale_api_version.restype = c_int32
    found = loaded.shale_api_version()
    if found < API_VERSION:
        raise ImportError(f"{path} has version {found} of the C interface; this package needs {API_VERSION}")
    for name, arguments in CALLS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = c_int32, [*arguments, POINTER(Error)]
    for name, (result, arguments) in BUILDER_CALLS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, [_HANDLE, *arguments]
    _library = loaded
    return loaded


def call(name, *arguments, callbacks=()):
    """Calls a function that returns a code. Raises its error, as `check` does."""
    error = Error()
    code = getattr(library(), name)(*arguments, byref(error))
    if code != 0 or callbacks:
        check(code, error, callbacks)


def check(code, error, callbacks=()):
    """Raises the error of a call that returned `code`, unless that is 0. The cause is what one of `callbacks` raised,
    perhaps in an earlier call, because data are read ahead. What is no Exception, like KeyboardInterrupt, is raised
    itself, also if the code is 0."""
    for c in callbacks:
        c.raise_interrupt()
    if code != 0:
        raised = [exception for c in callbacks for exception in c.take_raised()]
        raise error_of(code, error.message.decode("utf-8", "replace")) from (raised[0] if raised else None)


def bare(name):
    """Returns a function of the library that does not convert its arguments: each must be an object of ctypes. For the
    calls of every step. A step leaves nothing of Python in the processor's caches, so that what else would take a
    microsecond takes ten."""
    return library()[name]  # An object of its own; attributes of the library are shared by all callers.


def bytes_of(name, *arguments, through=call):
    """Calls a function that returns text, or bytes in its place."""
    needed = c_size_t()
    through(name, *arguments, None, 0, ctypes.byref(needed))
    buffer = ctypes.create_string_buffer(needed.value)
    through(name, *arguments, buffer, needed.value, None)
    return buffer.raw[:-1]


def text_of(name, *arguments, through=call):
    """Calls a function that returns text."""
    return bytes_of(name, *arguments, through=through).decode()


class Callbacks:
    """Python functions that the engine calls. Keeps them alive, and the exceptions that they raise."""

    def __init__(self):
        self._raised = []
        self._kept = []

    def raise_interrupt(self):
        """Raises the first exception that is no Exception, if there is one."""
        for exception in self._raised:
            if not isinstance(exception, Exception):
                self._raised.clear()
                raise exception

    def take_raised(self):
        """Returns the exceptions so far, and forgets them."""
        raised, self._raised = self._raised, []
        return raised

    def pointer(self, kind, function):
        """Returns the address of a C function that calls `function(*arguments)`, whose last argument is the error. What
        the function raises becomes the error; what it returns is the code, None meaning 0."""

        def guarded(*arguments):
            try:
                return function(*arguments) or 0
            except BaseException as exception:  # pylint: disable=broad-except
                self._raised.append(exception)
                message = f"{type(exception).__name__}: {exception}".encode()[:8000]
                arguments[-1].contents.message = message
                return UNKNOWN

        kept = kind(guarded)
        self._kept.append(kept)
        return ctypes.cast(kept, c_void_p)


class Handle:
    """A handle of the engine, freed by `close`, at the end of a `with`, or with the object. Keeps `kept`, which the
    engine uses until then."""

    def __init__(self, kind, kept=None):
        self._kind = kind
        self.kept = kept
        self.value = _HANDLE()

    def __reduce__(self):
        # A copy would free what the original uses.
        raise TypeError(f"a {self._kind} of the engine cannot be copied or pickled")

    def close(self):
        if self.value.value:
            call(f"shale_{self._kind}_free", self.value)
            self.value.value = 0

    def __del__(self):
        try:
            self.close()
        except Exception:  # pylint: disable=broad-except
            pass  # In use, or the interpreter ends: the engine keeps the object.
