"""Writes the report in Markdown."""

import math

from bench.train import before, claims, contestants, memory, workloads

_BUSY_CORES = 0.1  # More than this counts as a disturbance.


def markdown(results):
    parts = [_head(results)]
    for workload in workloads.NAMES:
        precisions = [p for p in workloads.PRECISIONS if any(results.of(workload, p, c) for c in contestants.ALL)]
        if precisions:
            parts += [f"## {workload}", _targets(results, workload, precisions), _floors(results, workload, precisions),
                      _against_before(results, workload, precisions), _memory(results, workload, precisions),
                      _medians(results, workload, precisions), _losses(results, workload, precisions)]
    parts.append(_remarks(results))
    return "\n\n".join(part for part in parts if part) + "\n"


def summary(results):
    """Counts targets. Returns (met, undecided, out of reach here, measured)."""
    measured = [(claim, workload, precision, value)
                for workload in workloads.NAMES for claim in claims.of(workload) for precision in workloads.PRECISIONS
                if (value := claim.value(results, workload, precision)) is not None]
    unmet = [(claim, workload, precision) for claim, workload, precision,
              value in measured if not claim.met(value, precision)]
    undecided = [claim for claim, workload, precision in unmet if claim.undecided(results, workload, precision)]
    out_of_reach = [claim for claim, workload, precision in unmet if claim.out_of_reach(results, workload, precision)]
    return len(measured) - len(unmet), len(undecided), len(out_of_reach), len(measured)


def _head(results):
    onednn = {r["onednn"] for r in results.records if "onednn" in r}
    info = {**results.info, **({"oneDNN": ", ".join(sorted(onednn))} if onednn else {})}
    met, undecided, out_of_reach, measured = summary(results)
    if measured == 0:
        return "\n".join(["# Training steps on the CPU", "", *(f"- {name}: {text}" for name, text in info.items())])
    return "\n".join(["# Training steps on the CPU", "", *(f"- {name}: {text}" for name, text in info.items()), "",
                      f"{met} of the {measured} targets measured are met" +
                      (" by the median of the rounds (values of single rounds in parentheses)"
                       if len(results.rounds()) > 1 else "") +
                      (f"; undecided: {undecided}" if undecided else "") +
                      (f"; out of reach here: {out_of_reach}." if out_of_reach else ".")])


def _table(header, rows):
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *rows])


def _memory(results, workload, precisions):
    tables = [_table(header, rows) for header, rows in memory.tables(results, workload, precisions)]
    if not tables:
        return ""
    about = ("Peak RSS and seconds a step, medians of the same run, with 2,048 tokens a sequence. Ratios are of the "
             "engine over PyTorch, and of the first setting over the second.")
    return "\n\n".join([about, *tables])


def _targets(results, workload, precisions):
    if all(claim.value(results, workload, precision) is None
           for claim in claims.of(workload) for precision in precisions):
        return ""
    rows = []
    for claim in claims.of(workload):
        row = [claim.label]
        for precision in precisions:
            value = claim.value(results, workload, precision)
            sign = ">=" if claim.at_least else "<="
            error = claim.error(results, workload, precision)
            verdict = "not measured" if value is None else "met" if claim.met(value, precision) else \
                "undecided" if claim.undecided(results, workload, precision) else \
                "**not met**" + _bound(claim, results, workload, precision)
            row += ["" if value is None else _value(claim, value, error, claim.by_round(results, workload, precision)),
                    f"{sign} {claim.targets[precision]:.3g} {claim.unit}", verdict]
        rows.append(row)
    header = ["shale"] + [text for precision in precisions for text in (precision, "target", "")]
    text = _table(header, rows)
    if "±" in text:
        text += ("\n\n±: two standard errors, from the ratios of turns that followed each other. A value that misses "
                 "its target by less counts as undecided.")
    return text


def _value(claim, value, error, by_round):
    text = f"{value:.3f} {claim.unit}" if error is None else f"{value:.3f} ± {2 * error:.3f} {claim.unit}"
    return text if len(by_round) < 2 else f"{text} ({', '.join(f'{one:.3f}' for one in by_round)})"


def _bound(claim, results, workload, precision):
    bound = claim.bound_value(results, workload, precision)
    if bound is None:
        return ""
    said = "out of reach here" if claim.out_of_reach(results, workload, precision) else \
        "at most" if claim.value(results, workload, precision) <= bound else "although beyond its bound"
    return f", {said}: {bound:.3f} {claim.unit}"


def _floors(results, workload, precisions):
    """Describes what the bounds of unmet targets are computed from."""
    lines = []
    for precision in precisions:
        for matmuls, about in (("matmuls", ""), ("matmuls-2ranks", ", two ranks on half of the threads each")):
            floor = claims.floor_of(results, workload, precision, matmuls)
            if floor is None:
                continue
            gflop, seconds, attention, attention_seconds, packed, moved, copy = (
                results.median(workload, precision, matmuls, key)
                for key in ("gflop", "seconds", "attention_gflop", "attention_seconds", "packed_bytes", "other_bytes",
                            "copy_bytes_per_second"))
            lines.append(f"{precision}{about}: {gflop:,.0f} GFLOP of matmuls alone in {seconds:.4f} s, those of "
                         f"{attention:,.0f} GFLOP of attention in {attention_seconds:.4f} s, and "
                         f"{packed / 1e9:.2f} GB to pack B and {moved / 1e9:.2f} GB for all else at "
                         f"{copy / 1e9:.1f} GB/s, copies of memory at their best: {floor:.4f} s a step.")
    if not lines:
        return ""
    return "\n".join(["Bounds (at most, out of reach): what a ratio would be if a step, of these ops and with oneDNN's "
                      "matmuls, took no longer than this. Medians of the same run; a ratio past its bound shows that "
                      "the machine was slower when that was measured.",
                      "", *(f"- {line}" for line in lines)])


def _against_before(results, workload, precisions):
    """Compares the contestants of the engine with their twins of --before."""
    rows = []
    for precision in precisions:
        for name in contestants.ALL:
            both = name, before.twin(name)
            speed, rss, planned = (claims.ratio(*both, key) for key in ("seconds", "peak_rss_bytes", "planned_bytes"))
            if (value := speed.value(results, workload, precision)) is None:
                continue
            seconds = (results.median(workload, precision, one) for one in both)
            rows.append([f"{name} {precision}", *(f"{one:.4f}" for one in seconds),
                         _value(speed, value, speed.error(results, workload, precision),
                                speed.by_round(results, workload, precision)),
                         *(f"{claim.value(results, workload, precision):.3f} x" for claim in (rss, planned))])
    if not rows:
        return ""
    about = "This build (now) against another one (before): below 1, this one is faster, or needs less memory."
    if any("±" in row[3] for row in rows):
        about += " ±: two standard errors, from the ratios of turns that followed each other."
    return about + "\n\n" + _table(["now against before", "now, s a step", "before, s a step", "time", "peak RSS",
                                    "planned memory"], rows)


def _medians(results, workload, precisions):
    rows = []
    for precision in precisions:
        for name in contestants.ALL:
            seconds = results.values(workload, precision, name, "seconds")
            if not seconds:
                continue
            median = results.median(workload, precision, name)
            rss, start, planned, tokens, gflop, other = (
                results.median(workload, precision, name, key)
                for key in ("peak_rss_bytes", "start_seconds", "planned_bytes", "tokens_per_step", "gflop",
                            "other_cores"))
            speed = f"{tokens / median:,.0f} tokens/s" if tokens else f"{gflop / median:,.0f} GFLOP/s"
            rows.append([f"{name} {precision}", f"{median:.4f}", f"{min(seconds):.4f} to {max(seconds):.4f}", speed,
                         _gib(rss), _gib(planned), "" if start is None else f"{start:.2f}", f"{other:.2f}"])
    return _table(["medians", "s a step", "by round", "speed", "peak RSS, GiB",
                  "planned a rank, GiB", "start, s", "other cores busy"], rows)


def _gib(size_bytes):
    return "" if size_bytes is None else f"{size_bytes / 2**30:.2f}"


def _losses(results, workload, precisions):
    parameters = next(r["parameters"] for r in results.records if r["workload"] == workload and "parameters" in r)
    losses = [f"{name} {precision} {loss:.3f}" for precision in precisions for name in contestants.ALL
              if (loss := results.median(workload, precision, name, "first_loss")) is not None]
    expected = workloads.Workload(workload, precisions[0]).expected_first_loss()
    lines = [
        f"{parameters:,} parameters on every side. First losses, ln(vocabulary) being {expected:.3f}: "
        f"{', '.join(losses)}."]
    return "\n".join(lines)


def odd_losses(results):
    """Lists contestants whose first loss is not that of an untrained model."""
    odd = []
    for record in results.records:
        if "first_loss" in record:
            expected = workloads.Workload(record["workload"], record["precision"]).expected_first_loss()
            if not math.isfinite(record["first_loss"]) or abs(record["first_loss"] - expected) > 0.05 * expected:
                odd.append(f"{record['workload']} {record['precision']} {record['contestant']}: first loss "
                           f"{record['first_loss']:.3f}, expected about {expected:.3f}")
    return odd


def _remarks(results):
    lines = list(results.notes)
    disturbed = [r for r in results.records if r.get("other_cores", 0) > _BUSY_CORES]
    if disturbed:
        most = max(r["other_cores"] for r in disturbed)
        lines.append(
            f"**The machine was busy**: in {len(disturbed)} of {len(results.records)} measurements something else "
            f"kept more than {_BUSY_CORES} cores busy, up to {most:.2f}. Measure again on an idle one.")
    widened = sorted({r["precision"] for r in results.records if r.get("widened")})
    if widened:
        lines.append("This processor does not multiply bf16: those matmuls ran in fp32.")
    lines += sorted({f"{r['workload']} {r['precision']} {r['contestant']}: {r['remark']}"
                     for r in results.records if "remark" in r})
    lines += [f"**Odd**: {text}" for text in odd_losses(results)]
    lines += [f"**Failed**: {text}" for text in results.failures()]
    return "\n".join(["## Remarks", "", *(f"- {line}" for line in lines)]) if lines else ""


def is_busy(other_cores):
    return other_cores > _BUSY_CORES
