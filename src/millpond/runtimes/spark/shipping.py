"""Send the program, once, and the user's own modules to the workers."""

from __future__ import annotations

import atexit
import os
import shutil
import site
import sys
import sysconfig
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from types import ModuleType

from pyspark import Broadcast, SparkContext

from millpond.pipeline.graph import Program
from millpond.runtimes.pickling import PackedProgram, unpack_program


class ShippedProgram:
    """A program for the workers: broadcast once, loaded once per worker process."""

    def __init__(self, context: SparkContext, packed: PackedProgram) -> None:
        self.name = blake2b(packed.data, digest_size=16).hexdigest()
        self._data: Broadcast[bytes] = context.broadcast(packed.data)

    def program(self) -> Program:
        """Return the program. Called in a worker."""
        found = _programs.get(self.name)
        if found is None:
            found = _programs[self.name] = unpack_program(self._data.value)
            while len(_programs) > 8:
                _programs.popitem(last=False)
        return found


PACKAGE_FOLDERS = frozenset(("site-packages", "dist-packages"))

_programs: OrderedDict[str, Program] = OrderedDict()

_shipped_modules: set[tuple[str, str]] = set()


def find_own_modules(modules: Mapping[str, ModuleType]) -> dict[str, str]:
    """Return the files of the user's own modules among some that are loaded: path in an archive → path here.

    Those of installed packages are left out, also of packages in the site-packages of another environment: an archive
    cannot hold their binaries.
    """
    installed = {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), *site.getsitepackages()}
    installed.add(site.getusersitepackages())
    roots = tuple(os.path.realpath(path) + os.sep for path in installed if path)
    own = str(Path(__file__).resolve().parents[2]) + os.sep
    files: dict[str, str] = {}
    for name, module in sorted(modules.items()):
        file = getattr(module, "__file__", None)
        if name == "__main__" or not file or not file.endswith(".py") or not os.path.isfile(file):
            continue
        real = os.path.realpath(file)
        if real.startswith((own, *roots)) or not PACKAGE_FOLDERS.isdisjoint(Path(real).parts):
            continue
        is_package = os.path.basename(file) == "__init__.py"
        files[name.replace(".", "/") + ("/__init__.py" if is_package else ".py")] = real
    return files


def ship_modules(context: SparkContext) -> None:
    """Send the user's own modules to the executors: those that are not in an installed package."""
    files = find_own_modules(sys.modules)
    if not files:
        return
    digest = blake2b(digest_size=8)
    for target, real in files.items():
        digest.update(target.encode() + Path(real).read_bytes())
    key = (context.applicationId, digest.hexdigest())
    if key in _shipped_modules:
        return
    folder = tempfile.mkdtemp(prefix="millpond-modules-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # executors fetch it for as long as the driver lives
    path = os.path.join(folder, f"modules-{digest.hexdigest()}.zip")
    with zipfile.ZipFile(path, "w") as archive:
        # A package without __init__.py is found only where the archive names its folder.
        for above in sorted({str(above) for target in files for above in PurePosixPath(target).parents} - {"."}):
            archive.writestr(f"{above}/", b"")
        for target, real in files.items():
            archive.write(real, target)
    context.addPyFile(path)
    _shipped_modules.add(key)
