"""Plans: what a job needs, before it runs."""

import ctypes
import json

from shale import _c
from shale._job import as_job
from shale._stop import call_on_thread

_FORMS = {"text": 0, "json": 1, "explain": 2, "program": 3, "html": 4}


def form_number(form):
    if form not in _FORMS:
        raise ValueError(f"form is {form!r}; allowed: {', '.join(_FORMS)}")
    return _FORMS[form]


class Plan:
    """A plan of a job for this machine. Bytes are those of one rank. The attributes are those of shale_plan_summary:
    ranks, micro_batches, parameters, arena_bytes, peak_bytes, persistent_bytes, host_bytes, budget_bytes (0: no limit),
    sent_bytes, flops_per_token."""

    def __init__(self, job, model=None):
        self._handle = _c.Handle("plan", kept=model)  # explain() builds its graph again.
        struct = model.struct() if model else None
        call_on_thread("shale_plan_create", job.handle, struct, ctypes.byref(self._handle.value),
                       callbacks=[model.callbacks] if model else ())
        summary = _c.PlanSummary()
        _c.call("shale_plan_get_summary", self._handle.value, ctypes.byref(summary))
        self.ranks: int = summary.ranks
        self.micro_batches: int = summary.micro_batches
        self.parameters: int = summary.parameters
        self.arena_bytes: int = summary.arena_bytes
        self.peak_bytes: int = summary.peak_bytes
        self.persistent_bytes: int = summary.persistent_bytes
        self.host_bytes: int = summary.host_bytes
        self.budget_bytes: int = summary.budget_bytes
        self.sent_bytes: int = summary.sent_bytes
        self.flops_per_token: float = summary.flops_per_token

    def text(self, form: str = "text") -> str:
        """Returns the plan as "text" (as `train` prints it), "json", "explain" (what each choice costs and what others
        would), "program" (instruction by instruction) or "html" (a page)."""
        through = _c.call if self._handle.kept is None else call_on_thread
        return _c.text_of("shale_plan_text", self._handle.value, form_number(form), through=through)

    def explain(self) -> str:
        return self.text("explain")

    def json(self) -> dict:
        return json.loads(self.text("json"))

    def __str__(self):
        return self.text()


def plan(job, ranks=None, model=None, set=None) -> Plan:  # pylint: disable=redefined-builtin
    """Plans a job (a Job, or the path of a job file) without running it, for another number of ranks if given. Raises
    OutOfMemory, with what would fit, if it does not fit this machine."""
    job = as_job(job, own_model=model is not None)
    settings = dict(set or {})
    if ranks is not None:
        settings["sharding.ranks"] = ranks
    return Plan(job.with_set(settings) if settings else job, model)
