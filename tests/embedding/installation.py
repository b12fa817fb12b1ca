"""The installation that the tests of this folder share, because tools/install takes seconds."""

import atexit
import functools
import os
import shutil
import tempfile

from run_test import INSTALL_FLAG, ROOT, run

# Files of an earlier installation, from the prefix. Those in REMOVED have names that the new one does not use.
REPLACED = ("bin/shale-train", "lib/libshale.so.0", "include/shale.h")
REMOVED = ("bin/shale-old", "lib/libshale.so.0.0", "lib/shale/libshale_old.so.1",
           "share/shale/shale-0.0-py3-none-any.whl")
OLD = b"of an earlier installation"


@functools.lru_cache(maxsize=None)
def installed():
    """Installs over files of an earlier installation, once, and moves the prefix. Returns it. Tests only read it."""
    folder = tempfile.mkdtemp(prefix="shale_install.")
    atexit.register(shutil.rmtree, folder)
    staging = os.path.join(folder, "staging")
    for name in REPLACED + REMOVED:
        path = os.path.join(staging, "opt/shale", name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(OLD)
    run([os.path.join(ROOT, "tools/install"), "--prefix=/opt/shale", INSTALL_FLAG],
        env={**os.environ, "DESTDIR": staging})
    prefix = os.path.join(folder, "moved to here")
    os.rename(os.path.join(staging, "opt/shale"), prefix)
    return prefix
