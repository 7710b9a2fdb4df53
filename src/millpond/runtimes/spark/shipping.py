"""What travels to the workers: the program, once, and the user's own modules."""

from __future__ import annotations

import atexit
import os
import pickle
import shutil
import site
import sys
import sysconfig
import tempfile
import zipfile
from collections import OrderedDict
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pyspark import Broadcast, SparkContext, cloudpickle

from millpond.errors import InvalidUse
from millpond.flow import Delivery, Source
from millpond.pipeline.graph import Deliver, Program, Read


@dataclass
class Elsewhere:
    """Stands in for a sink that no worker calls."""

    where: Literal["driver", "workers", "session", "nowhere"]

    def deliver(self, rows: list[Any], delivery: Delivery) -> None:
        raise AssertionError("this sink is not called in a worker")


class Shipped:
    """A program on its way to the workers: sent once, unpacked once per worker process."""

    def __init__(self, context: SparkContext, program: Program) -> None:
        nodes = []
        for node in program.nodes:
            op = node.op
            if isinstance(op, Read) and not isinstance(op.source, Source):
                op = replace(op, source=None)
            elif isinstance(op, Deliver) and op.sink.where != "workers":
                op = replace(op, sink=Elsewhere(op.sink.where))
            nodes.append(replace(node, op=op))
        for kind in program.types:
            # What msgspec notes on a dataclass that it has made cannot travel, and is made anew at need.
            if "__msgspec_cache__" in vars(kind):
                del kind.__msgspec_cache__  # type: ignore[attr-defined]
        try:
            data = cloudpickle.dumps(replace(program, nodes=tuple(nodes)))  # type: ignore[no-untyped-call]
        except Exception as error:
            raise InvalidUse(
                f"app {program.app!r}: a function, source or sink cannot be sent to the workers: {error}. "
                "Functions may not hold on to open files, locks, connections or the SparkSession."
            ) from error
        self.name = blake2b(data, digest_size=16).hexdigest()
        self._data: Broadcast[bytes] = context.broadcast(data)

    def program(self) -> Program:
        """The program, in a worker."""
        found = _unpacked.get(self.name)
        if found is None:
            found = _unpacked[self.name] = pickle.loads(self._data.value)
            while len(_unpacked) > 8:
                _unpacked.popitem(last=False)
        return found


_unpacked: OrderedDict[str, Program] = OrderedDict()

_shipped: set[tuple[str, str]] = set()


def ship_modules(context: SparkContext) -> None:
    """Send the user's own modules, those that no package manager put there, to the executors."""
    installed = {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), *site.getsitepackages()}
    installed.add(site.getusersitepackages())
    roots = tuple(os.path.realpath(path) + os.sep for path in installed if path)
    own = str(Path(__file__).resolve().parents[2]) + os.sep
    files: dict[str, str] = {}
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name == "__main__" or not file or not file.endswith(".py") or not os.path.isfile(file):
            continue
        real = os.path.realpath(file)
        if real.startswith(own) or real.startswith(roots):
            continue
        is_package = os.path.basename(file) == "__init__.py"
        files[name.replace(".", "/") + ("/__init__.py" if is_package else ".py")] = real
    if not files:
        return
    digest = blake2b(digest_size=8)
    for target, real in files.items():
        digest.update(target.encode() + Path(real).read_bytes())
    key = (context.applicationId, digest.hexdigest())
    if key in _shipped:
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
    _shipped.add(key)
