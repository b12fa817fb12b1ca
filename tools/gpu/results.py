"""Writes the results of a folder after each item: the page, the rates, those of attention once more as a table for
jobs, and the archive that the caller wants."""

import datetime
import os

from gpu import archive, attention, page, rates, store


class Results:
    """The results among the items `names`, and among what the folder has besides of the same kit. `archived` is the
    path of the archive, or ""."""

    def __init__(self, kit, kept, names, archived):
        self.kit, self.kept, self.names, self.archived = kit, kept, names, archived

    def write(self):
        """Replaces all files. Each is whole at any time."""
        names = list(dict.fromkeys([*self.names, *(name for name in self.kept.data["items"] if self.kept.item(name))]))
        card, today = self.kit.gpus[0]["name"], datetime.date.today().isoformat()
        for file, make in (("report.md", page.Page(self.kept, names, card, today).text),
                           ("rates.json", lambda: rates.text(self.kept, names, card, today)),
                           ("attention.txt", lambda: attention.of(self.kept, names, self.kit.gpus[0], today))):
            store.write_durably(self.kit.path(file), _made(file, make))
        if self.archived:
            archive.write(self.kit.out, os.path.abspath(self.archived))


def _made(file, make):
    """Returns what make() returns. A result that it cannot show must not end a visit to a GPU: report.json has it."""
    try:
        return make()
    except Exception as error:
        return store.dumps({"error": f"{file} cannot be made: {type(error).__name__}: {error}"}) + "\n"
