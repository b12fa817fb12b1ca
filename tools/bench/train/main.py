#!/usr/bin/env python3
"""The main program of tools/bench_train. options.py says how it measures."""

import concurrent.futures
import contextlib
import datetime
import os
import signal
import sys

_BENCH = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.dirname(_BENCH))

from bench.train import contestants, isa, options, place, process, programs, table, turns, workloads  # noqa: E402
from bench.train.before import Before  # noqa: E402
from bench.train.results import Disagreement, Results, write_line  # noqa: E402

_RESULTS = os.path.join(_BENCH, "results")
_INTERRUPTED = 130  # The exit code of programs that Ctrl-C ended.
_SECONDS_BETWEEN_LOOKS = 0.1  # How often the main thread looks for signals while it measures.


def say(text):
    print(text, file=sys.stderr, flush=True)


def plan_of(chosen):
    """Returns a round's list of (workload, names of contestants that take turns), in order."""
    plan = []
    for workload, candidates in _candidates(chosen):
        names = [name for name in candidates if not why_not(chosen, workload, name)]
        plan += [(workload, some) for some in contestants.in_sets(names, 1 if chosen.apart else workload.together)]
    return plan


def _candidates(chosen):
    """Yields each workload with the names of the chosen contestants that are for it."""
    for name in chosen.workloads:
        for workload in [workloads.Workload(name, precision) for precision in chosen.precisions]:
            yield workload, [one for one in chosen.contestants if contestants.ALL[one].runs_on(workload)]


def why_not(chosen, workload, name):
    """Returns why the contestant cannot run on the workload with these flags; empty if it can."""
    contestant = contestants.ALL[name]
    if chosen.threads % contestant.ranks:
        return f"{contestant.ranks} ranks cannot share --threads={chosen.threads} evenly"
    if (isinstance(contestant, programs.Torch) and workload.precision == "bf16" and
            not isa.torch_multiplies_bf16(chosen.isa)):
        return f"with --isa={chosen.isa} PyTorch multiplies bf16 in plain loops, a thousand times slower"
    if isinstance(contestant, Before):
        unknown = contestant.unknown(workload, chosen.before, chosen.threads)
        return f"the train of --before does not know {', '.join(unknown)}" if unknown else ""
    return ""


def left_out(chosen):
    """Returns notes about the contestants that are left out, one for each reason and precision."""
    names = {}
    for workload, candidates in _candidates(chosen):
        for name in candidates:
            if reason := why_not(chosen, workload, name):
                names.setdefault((reason, workload.precision), {})[name] = None
    return [f"left out in {precision}: {', '.join(some)}: {reason}" for (reason, precision), some in names.items()]


def measure(chosen, here, results, log):
    """Runs all rounds. Appends every record and note to `results` and to the open file `log`."""
    for number in range(1, chosen.rounds + 1):
        # Contestants that are compared are always measured together: if one is missing, all are measured again.
        plan = [(workload, names) for workload, names in plan_of(chosen)
                if not all(results.of(workload.name, workload.precision, name, number) for name in names)]
        if not plan:
            continue
        busy = process.other_cores_now()
        load = " ".join(f"{value:.2f}" for value in os.getloadavg())
        _note(results, log, f"round {number}: load average {load}, {busy:.2f} cores busy before it")
        if table.is_busy(busy):
            _note(results, log, f"WARNING: the machine is busy, round {number} measures that too")
        for workload, names in plan:
            here.tokens(workload)  # Writes the token file before anything is measured.
            with contextlib.closing(_measure_together(chosen, here, workload, names)) as measured:
                for name, result in measured:
                    record = {"workload": workload.name, "precision": workload.precision, "contestant": name,
                              "round": number, **result}
                    write_line(log, record)
                    results.replace(record)
                    say(_line(record))


def _note(results, log, text):
    """Adds a note, unless a call that is resumed left the same one."""
    if text not in results.notes:
        results.notes.append(text)
        write_line(log, {"note": text})
    say(text)


def _go_on(results, info, log):
    """Notes how machine and versions differ from those of the call that is resumed, if there is one."""
    for key, value in info.items():
        if key != "date" and results.info.get(key, value) != value:
            _note(results, log, f"{key} was {results.info[key]}, and is {value} from here on")
    results.info = {**info, **results.info}


def _measure_together(chosen, here, workload, names):
    """Yields each contestant's name and its result or failure, as soon as it has ended."""
    rotation = turns.Rotation()
    members = [rotation.join() if len(names) > 1 else None for _ in names]

    def one(name, turn):
        try:
            steps, warmup = chosen.steps or workload.steps, chosen.warmup or workload.warmup
            result = contestants.ALL[name].run(workload, here, steps, warmup, name, turn)
            return name, {**result, "in_turns": turn is not None}
        except (process.Failed, OSError, ValueError, KeyError) as error:
            return name, {"failed": str(error) or repr(error)}
        finally:
            if turn:
                turn.leave()

    # Only the main thread is interrupted. It waits here, so that the threads that start processes always end them too.
    with _deferred_interrupts() as interrupts, concurrent.futures.ThreadPoolExecutor(len(names)) as threads:
        waiting = [threads.submit(one, *member) for member in zip(names, members)]
        try:
            while waiting and not interrupts:
                done, waiting = concurrent.futures.wait(waiting, _SECONDS_BETWEEN_LOOKS,
                                                        concurrent.futures.FIRST_COMPLETED)
                yield from (future.result() for future in done)
        finally:
            if waiting:
                here.ended.set()
                rotation.end()


@contextlib.contextmanager
def _deferred_interrupts():
    """Yields a list to which signals are appended that would otherwise raise KeyboardInterrupt. Raises it at the end if
    there were any. Raised at any moment, it could come where the main thread holds a lock that other threads need in
    order to end, and leave that lock held."""
    interrupts = []
    numbers = [number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
               if signal.getsignal(number) == signal.default_int_handler]
    for number in numbers:
        signal.signal(number, lambda number, _: interrupts.append(number))
    try:
        yield interrupts
    finally:
        for number in numbers:
            signal.signal(number, signal.default_int_handler)
    if interrupts:
        raise KeyboardInterrupt


def _line(record):
    head = f"round {record['round']}  {record['workload']} {record['precision']} {record['contestant']}:"
    if "failed" in record:
        return f"{head} FAILED: {record['failed']}"
    single = Results()
    single.add(record)
    key = record["workload"], record["precision"], record["contestant"]
    text = f"{head} {single.median(*key):.4f} s a step"
    if "peak_rss_bytes" in record:
        text += f", peak RSS {record['peak_rss_bytes'] / 2**30:.2f} GiB, first loss {record['first_loss']:.3f}"
    return text + (f"  ({record['other_cores']:.2f} other cores busy)" if table.is_busy(record["other_cores"]) else "")


def keep(text, name):
    os.makedirs(_RESULTS, exist_ok=True)
    path = os.path.join(_RESULTS, f"{datetime.date.today().isoformat()}-{name}.md")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    say(f"kept in {os.path.relpath(path)}")


def run(chosen):
    results, interrupted = Results(), False
    if chosen.render:
        for path in chosen.render:
            results.read(path)
    else:
        wanted = [contestants.ALL[name] for _, names in plan_of(chosen) for name in names]
        left = left_out(chosen)
        if not wanted:
            raise place.Missing("nothing to measure: " + (
                "; ".join(left) or f"of the contestants named, all are for {workloads.FIRST} only"))
        with_torch = any(isinstance(contestant, programs.Torch) for contestant in wanted)
        here = place.Place(chosen.threads, binaries=os.path.abspath(chosen.bin) if chosen.bin else "",
                           venv=os.path.abspath(chosen.venv) if chosen.venv else "", before=chosen.before,
                           limit=chosen.isa)
        needed = max((workload.gib * len(names) for workload, names in plan_of(chosen) if len(names) > 1), default=0)
        if needed > place.available_gib():
            raise place.Missing(
                f"contestants that take turns are in memory together and need about {needed:.0f} GiB; "
                f"{place.available_gib():.0f} are available: name fewer with --only, or measure --apart")
        here.prepare(shale=not all(isinstance(contestant, programs.Torch) for contestant in wanted), torch=with_torch)
        info = here.describe()
        path = chosen.resume or here.path(datetime.datetime.now().strftime("runs-%Y%m%d-%H%M%S.jsonl"))
        if chosen.resume:
            results.read(path)
        with open(path, "a", encoding="utf-8") as log:
            write_line(log, {"info": info})
            try:
                _go_on(results, info, log)
                for note in left:
                    _note(results, log, note)
                measure(chosen, here, results, log)
            except KeyboardInterrupt:
                interrupted = True
                results.notes.append("interrupted before the last round was complete")
                say("interrupted; what was measured so far:")
        say(f"measurements: {os.path.relpath(path)}\n")
    text = table.markdown(results)
    print(text, flush=True)
    if chosen.keep:
        keep(text, chosen.keep)
    if interrupted:
        return _INTERRUPTED
    return 1 if results.failures() or table.odd_losses(results) else 0


def main(arguments):
    chosen = options.parse(arguments)
    # Treats these signals alike: ends the processes that are being measured, and shows what was measured so far. Shells
    # start programs in the background such that they ignore SIGINT, which is undone here. What nohup does is not.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    if chosen.list:
        print(options.list_text())
        return 0
    try:
        return run(chosen)
    except (place.Missing, Disagreement, OSError, ValueError) as error:
        say(f"bench_train: {error}")
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
