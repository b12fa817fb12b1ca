"""Writes report.md: a page for people in the form of tools/bench/results, of what has been measured so far."""

import collections

from gpu import orders, pairs, store, tables

_FROM_MACHINE = ("commit", "packed", "arch", "gpus")


class Page:
    """A page on the items `names` of a Store, which ran on `card`. It shows results of the store's commit alone."""

    def __init__(self, kept, names, card, date):
        self.kept, self.names, self.card, self.date = kept, names, card, date

    def text(self):
        sections = (("Tests", self._tests()), ("Training", self._training()), ("Beside PyTorch", self._torch()),
                    ("One beside another", self._pairs()),
                    ("Where the time of a step goes", self._traces()), ("Ops", self._ops()),
                    ("Matmuls and attention", self._matmuls()), ("8-bit formats", self._formats()),
                    ("Settings of a step", self._sweeps()), ("NCCL between processes of one GPU", self._nccl()),
                    ("Collectives", self._collectives()),
                    ("Memory outside the arenas", self._taken()), ("Libraries", self._libraries()),
                    ("Not run, or not passed", self._rest()))
        return "\n".join([self._head(), self._summary(),
                          *(f"## {title}\n\n{text}" for title, text in sections if text)])

    def results(self, kind):
        """Returns (the name behind the kind, result, clocks) of each item of this kind that passed."""
        passed = [(name, self.kept.item(name)) for name in self.names if name.split("/")[0] == kind]
        return [(name.split("/", 1)[1], item["result"], item.get("clocks", {})) for name, item in passed
                if item.get("status") == store.PASSED and item.get("result")]

    def _head(self):
        machine = self.kept.data["machine"]
        about = "".join(f"; {name} {said}" for name, said in machine.items() if name not in _FROM_MACHINE)
        return (f"# Runs on {self.card}\n\n- date: {self.date}\n- machine: {machine.get('gpus', self.card)}{about}\n"
                f"- programs: kit of commit {self.kept.commit}\n")

    def _summary(self):
        left = [name for name in self.names if not self.kept.finished(name)]
        counts = collections.Counter(self.kept.item(name)["status"] for name in self.names if name not in left)
        former = collections.Counter(self.kept.other(name).get("commit", "unknown")
                                     for name in left if self.kept.other(name))
        return (f"{len(self.names)} items: "
                + ", ".join(f"{counts[status]} {status}" for status in (store.PASSED, store.FAILED, store.SKIPPED))
                + f", {len(left)} to do.\n"
                + "".join(f"\nOf the items to do, {count} have results of commit {commit}, which are not shown.\n"
                          for commit, count in former.items()))

    def _tests(self):
        rows = []
        for name in self.names:
            found = self.kept.item(name)
            result = found.get("result")
            if not isinstance(result, dict) or "tests" not in result:
                continue
            passed = result["tests"] - len(result["failed"]) - result["skipped"]
            rows.append([name, f"{passed} of {result['tests']}", result["skipped"], len(result["failed"]),
                         f"{found.get('seconds', 0):.0f} s"])
        return tables.table(["tests", "passed", "skipped", "failed", "time"], rows)

    def _training(self):
        started = lambda seconds: "" if seconds is None else f"{seconds:.0f} s"
        rows = [[name, *tables.speed(found), started(found["start_seconds"]), tables.settings(found),
                 tables.clocks(clocks)] for name, found, clocks in self.results("train")]
        return tables.table(["run", "tokens/s", "MFU", "s/step", "arena", "losses", "started after", "settings",
                             "clocks"], rows)

    def _torch(self):
        ours = {}
        for name, found, _ in self.results("train"):
            preset = name.split("/")[0]
            ours[preset] = max(ours.get(preset, 0), found["tokens_per_second"])
        rows = []
        for kind in ("torch", "torch_search"):
            for name, found, clocks in self.results(kind):
                preset = name.split("/")[0]
                ratio = f"{ours[preset] / found['tokens_per_second']:.2f}" if ours.get(preset) else ""
                rows.append([f"{kind} {name}", *tables.speed(found), ratio, tables.settings_of_torch(found),
                             tables.clocks(clocks)])
        return tables.table(["FSDP2", "tokens/s", "MFU", "s/step", "memory", "losses", "our best / its", "settings",
                             "clocks"], rows)

    def _pairs(self):
        of_kind = lambda kind: [(name, found) for name, found, _ in self.results(kind)]
        made = (pairs.turns(of_kind("turns")), pairs.ops(of_kind("ops")), pairs.by_op(of_kind("trace")))
        return "\n".join(text for text in made if text)

    def _traces(self):
        return "\n".join(tables.trace(name, found, clocks) for name, found, clocks in self.results("trace"))

    def _sustained(self):
        return next((found["sustained_bf16"] for name, found, _ in self.results("ops")
                     if name == orders.SUSTAINED and found.get("sustained_bf16")), None)

    def _ops(self):
        return tables.moving([(name, r) for name, found, _ in self.results("ops") for r in found["results"]])

    def _matmuls(self):
        return tables.computing([(name, r) for name, found, _ in self.results("ops") for r in found["results"]],
                                self._sustained())

    def _formats(self):
        losses = tables.losses([(name, found["losses"]) for name, found, _ in self.results("train")
                                if len(found["losses"]) == sum(orders.MANY_STEPS)])
        return tables.formats([(name, r) for name, found, _ in self.results("formats") for r in found]) + (
            losses and "\n" + losses)

    def _sweeps(self):
        return tables.sweeps([(name, r) for name, found, _ in self.results("sweep") for r in found])

    def _nccl(self):
        return tables.table(["check", "", "time"], [[name, found["about"], f"{found['seconds']:.0f} s"]
                                                    for name, found, _ in self.results("try_nccl")])

    def _collectives(self):
        return tables.collectives([(name, r) for name, found, _ in self.results("comm") for r in found["results"]])

    def _taken(self):
        taken = {name: found["taken"] for name, found, _ in self.results("train") if found.get("taken")}
        takers = dict.fromkeys(taker for of_run in taken.values() for taker in of_run)
        return tables.table(["run", *takers], [[name, *(of_run.get(taker, "") for taker in takers)]
                                               for name, of_run in taken.items()])

    def _libraries(self):
        said = dict.fromkeys(line for _, found, _ in self.results("train") for line in found["libraries"])
        return "".join(f"- {line}\n" for line in said)

    def _rest(self):
        rows = []
        for name in self.names:
            item = self.kept.item(name)
            if not self.kept.finished(name) or item.get("about"):
                rows.append([name, item.get("status", "to do"), item.get("about", "").replace("|", "\\|")])
        return tables.table(["item", "", "why"], rows)
