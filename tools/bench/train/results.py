"""Keeps what was measured: one record per process group, and medians over the records."""

import json
import statistics

# Maps the names of contestants in files of former versions to today's names.
_RENAMED = {"products": "matmuls", "products-2ranks": "matmuls-2ranks", "shale-deferred": "shale-no-sync"}


class Disagreement(Exception):
    """Two contestants did not train the same model."""


class Results:
    """The records of measurements. A record is a dict with workload, precision, contestant and round, and with a result
    (see contestants.py) or `failed`."""

    def __init__(self):
        self.info = {}
        self.notes = []
        self.records = []

    def add(self, record):
        """Adds a record. Raises Disagreement if its model has another number of parameters than those of the other
        contestants on its workload."""
        for other in self.records:
            if "parameters" in record and other["workload"] == record["workload"] and \
                    other.get("parameters", record["parameters"]) != record["parameters"]:
                raise Disagreement(
                    f"{record['workload']}: {record['contestant']} has {record['parameters']:,} parameters, "
                    f"{other['contestant']} has {other['parameters']:,}")
        self.records.append(record)

    def replace(self, record):
        """Adds a record in place of the one of the same workload, precision, contestant and round, if there is one."""
        same = {key: record[key] for key in ("workload", "precision", "contestant", "round")}
        self.records = [r for r in self.records if not same.items() <= r.items()]
        self.add(record)

    def read(self, path):
        """Adds the records of a file that `write_line` wrote. In a file, a later record replaces an earlier one of the
        same contestant and round. Raises ValueError, which says what is wrong with the file."""
        own = Results()
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    row = json.loads(line)
                    if "info" in row:
                        own.info = {**row["info"], **own.info}
                    elif "note" in row:
                        own.notes.append(row["note"])
                    else:
                        own.replace({**row, "contestant": _RENAMED.get(row["contestant"], row["contestant"])})
                except (ValueError, KeyError, TypeError) as error:
                    raise ValueError(f"{path}:{number}: no line of a measurement ({error})") from None
        for key, text in own.info.items():
            known = self.info.setdefault(key, text)
            if text not in known.split("; "):
                self.info[key] = f"{known}; {text}"
        self.notes += own.notes
        for record in own.records:
            self.add(record)

    def of(self, workload, precision, contestant, number=None):
        """Returns the records of measurements that succeeded; with `number`, only those of that round."""
        wanted = {"workload": workload, "precision": precision, "contestant": contestant,
                  **({} if number is None else {"round": number})}
        return [r for r in self.records if "seconds" in r and wanted.items() <= r.items()]

    def values(self, workload, precision, contestant, key, number=None):
        """Returns one value of `key` per record. Replaces a list by its median."""
        found = [r[key] for r in self.of(workload, precision, contestant, number) if key in r]
        return [statistics.median(v) if isinstance(v, list) else v for v in found]

    def median(self, workload, precision, contestant, key="seconds", number=None):
        """Returns the median of the values, or None if nothing was measured."""
        values = self.values(workload, precision, contestant, key, number)
        return statistics.median(values) if values else None

    def rounds(self):
        return sorted({r["round"] for r in self.records})

    def failures(self):
        return [f"{r['workload']} {r['precision']} {r['contestant']}: {r['failed']}" for r in self.records
                if "failed" in r]


def write_line(file, row):
    """Writes one row and flushes it at once, because a run of hours may be ended at any time."""
    file.write(json.dumps(row) + "\n")
    file.flush()
