"""What was measured: one record per process group, and medians over them."""

import json
import statistics

# Contestants of files that former versions wrote, and their names now.
_RENAMED = {"products": "matmuls", "products-2ranks": "matmuls-2ranks", "shale-deferred": "shale-no-sync"}


class Disagreement(Exception):
    """Two contestants did not train the same model."""


class Results:
    """Records are dicts: workload, precision, contestant, round, and a result (see contestants.py) or `failed`."""

    def __init__(self):
        self.info = {}
        self.notes = []
        self.records = []

    def add(self, record):
        """Disagreement if its model has another number of parameters than that of the others of its workload."""
        for other in self.records:
            if "parameters" in record and other["workload"] == record["workload"] and \
                    other.get("parameters", record["parameters"]) != record["parameters"]:
                raise Disagreement(
    f"{record['workload']}: {record['contestant']} has {record['parameters']:,} parameters, "
    f"{other['contestant']} has {other['parameters']:,}")
        self.records.append(record)

    def replace(self, record):
        """Adds it in place of those of the same contestant and round."""
        same = {key: record[key] for key in ("workload", "precision", "contestant", "round")}
        self.records = [r for r in self.records if not same.items() <= r.items()]
        self.add(record)

    def read(self, path):
        """Adds a file that `write_line` wrote, of which a later record stands for an earlier one of the same contestant
        and round. ValueError names what is wrong with it."""
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
        """Records of measurements that succeeded; `number`: in that round."""
        wanted = {"workload": workload, "precision": precision, "contestant": contestant,
                  **({} if number is None else {"round": number})}
        return [r for r in self.records if "seconds" in r and wanted.items() <= r.items()]

    def values(self, workload, precision, contestant, key, number=None):
        """One value per round; of a list its median."""
        found = [r[key] for r in self.of(workload, precision, contestant, number) if key in r]
        return [statistics.median(v) if isinstance(v, list) else v for v in found]

    def median(self, workload, precision, contestant, key="seconds", number=None):
        """Over the rounds, or in one; None: not measured."""
        values = self.values(workload, precision, contestant, key, number)
        return statistics.median(values) if values else None

    def rounds(self):
        return sorted({r["round"] for r in self.records})

    def failures(self):
        return [f"{r['workload']} {r['precision']} {r['contestant']}: {r['failed']}" for r in self.records
                if "failed" in r]


def write_line(file, row):
    """What was measured is kept at once: a run of hours may be ended."""
    file.write(json.dumps(row) + "\n")
    file.flush()
