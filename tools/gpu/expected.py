"""Estimates how many seconds items take. An H200 took as long to start a program, for tests and for training rows."""

CALL = 10      # A call unpacks programs, looks for libraries and Python, and plans.
CLOSE = 5      # It stops a program, and writes its results.
_START = 3     # A program starts, and loads kernels and libraries.
_LOAD = 4      # A model's matmuls and attention run once.
_LOAD_PARAMETER = 4.5e-9  # Its weights are filled.
_RATE, _UNKNOWN_PEAK = 0.4, 100e12  # The fraction of the peak that steps reach, and the peak of an unknown GPU.
_UNPLANNED = 60
_FLOPS_OF_PARAMETER = 6  # FLOPs of a token.
SANITIZED_CASE = 3


def train(plan, peak, steps):
    """Returns the seconds of a run of `steps` steps."""
    if plan is None or not plan.token_flops:
        return _UNPLANNED
    load = _LOAD + _LOAD_PARAMETER * plan.token_flops / _FLOPS_OF_PARAMETER
    return _START + load + steps * plan.step_tokens * plan.token_flops / (_RATE * (peak or _UNKNOWN_PEAK))
