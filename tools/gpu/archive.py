"""Keeps the results of a folder in one file, from which a later call goes on."""

import os
import tarfile
import zlib

from gpu import store

# What results are: not the programs, tokens and run folders beside them.
_REPORT = "report.json"
_FILES = (_REPORT, "report.md", "rates.json", "attention.txt", "tuning", "logs", "data/trials")
_MOST_BYTES = 1 << 20  # Of a log. Longer ones are left out.


def _names(folder):
    """Yields the paths of the results, relative to the folder."""
    for place, _, names in os.walk(folder):
        for name in sorted(names):
            path = os.path.relpath(os.path.join(place, name), folder)
            size = os.path.getsize(os.path.join(folder, path))
            if path.startswith(_FILES) and not path.endswith(".tmp") and (
                    size <= _MOST_BYTES or not path.startswith("logs")):
                yield path


def write(folder, path):
    """Replaces the archive `path` with one of the folder's results. After a crash it is the old one or the new one."""
    temporary = path + ".tmp"
    with open(temporary, "wb") as file:
        with tarfile.open(fileobj=file, mode="w:gz", compresslevel=3) as packed:
            for name in _names(folder):
                packed.add(os.path.join(folder, name), name)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def restore(path, folder):
    """Puts the archive's results into the folder, if there is an archive and the folder has no report. Raises
    ValueError if the file is no archive of results, or was cut short. The report comes last: where it is, all is."""
    if not os.path.exists(path) or os.path.exists(os.path.join(folder, _REPORT)):
        return
    report = None
    try:
        with tarfile.open(path) as packed:
            for member in packed:
                if not member.isfile() or not member.name.startswith(_FILES) or ".." in member.name:
                    raise ValueError(f"--archive={path}: {member.name} is no result of a kit; name another file")
                if member.name == _REPORT:
                    report = packed.extractfile(member).read().decode()
                    continue
                target = os.path.join(folder, member.name)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                with packed.extractfile(member) as source, open(target, "wb") as file:
                    file.write(source.read())
    except (tarfile.TarError, EOFError, zlib.error):
        raise ValueError(f"--archive={path} is no archive, or was cut short; remove it or name another file") from None
    if report is not None:
        store.write_durably(os.path.join(folder, _REPORT), report)
