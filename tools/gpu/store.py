"""Stores results on disk after every item, so that nothing is lost if the machine is taken away."""

import json
import os

PASSED, FAILED, SKIPPED, CUT = "passed", "failed", "skipped", "cut"
# An item that began this many times without an end is taken for the cause, and fails.
MOST_BEGUN = 2


def write_durably(path, text):
    """Replaces the file's text. After a crash the file has the old text or the new one."""
    temporary = path + ".tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def dumps(value):
    """Returns a value as JSON in one line."""
    return json.dumps(value, allow_nan=False)


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def remove(path):
    """Removes a file, which may be missing."""
    try:
        os.remove(path)
    except FileNotFoundError:
        pass


class Store:
    """The report.json of a folder: {"machine": {..}, "items": {name: {"commit", "status", "about", "seconds", "result",
    "clocks", "begun", "cuts"}}}, an item on each line. Results of another commit do not count. They stay until the item
    begins again. The file is replaced whenever an item begins or ends."""

    def __init__(self, folder, commit):
        self.commit = commit
        self.path = os.path.join(folder, "report.json")
        self.data = {"machine": {}, "items": {}}
        os.makedirs(folder, exist_ok=True)
        if os.path.exists(self.path):
            try:
                with open(self.path, encoding="utf-8") as file:
                    self.data = json.load(file)
            except ValueError as error:
                raise ValueError(f"{self.path} is not a report ({error}); remove it to start over") from None

    def item(self, name):
        """Returns what is stored of the item for this commit, or an empty dict."""
        found = self.data["items"].get(name, {})
        return found if found.get("commit") == self.commit else {}

    def other(self, name):
        """Returns what is stored of the item if it is of another commit, or an empty dict."""
        found = self.data["items"].get(name, {})
        return found if found.get("commit") != self.commit else {}

    def standing(self, name):
        """Describes the item's status for --list."""
        former = self.other(name)
        if "status" in former:
            return f"to do ({former['status']} with commit {former.get('commit', 'unknown')})"
        return self.item(name).get("status", "to do")

    def finished(self, name):
        return self.item(name).get("status") in (PASSED, FAILED, SKIPPED)

    def begin(self, name):
        """Marks the item as begun. If it was begun too often without an end, marks it as failed and returns False."""
        begun = self.item(name).get("begun", 0)
        if begun >= MOST_BEGUN:
            self.end(name, {"status": FAILED, "about": f"the whole kit ended while this item ran, {begun} times"})
            return False
        self.data["items"][name] = {**self.item(name), "commit": self.commit, "begun": begun + 1}
        self._write()
        return True

    def end(self, name, outcome):
        cuts = {"cuts": self.item(name).get("cuts", 0) + 1} if outcome["status"] == CUT else {}
        self.data["items"][name] = {"commit": self.commit, **outcome, **cuts}
        self._write()

    def forget(self, name):
        self.data["items"].pop(name, None)

    def describe(self, machine):
        self.data["machine"] = machine
        self._write()

    def _write(self):
        items = ",\n  ".join(f"{dumps(name)}: {json.dumps(item)}" for name, item in self.data["items"].items())
        write_durably(self.path, f'{{"machine": {dumps(self.data["machine"])},\n "items": {{\n  {items}\n}}}}\n')
