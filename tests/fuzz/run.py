"""``make fuzz``: many damaged files of every format through the readers, in a process that may die.

Each case is on disk before it is read: where the process crashes or hangs, the file that did it stays behind.
"""

import argparse
import collections
import faulthandler
import resource
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

PATIENCE = 60
MEMORY = 6 << 30


def worker(name, cases, seed, folder):
    """Read damaged files; anything but ValueError and OSError ends the process."""
    from tests.fuzz.damage import random_edits, samples

    warnings.simplefilter("ignore")
    faulthandler.enable()
    place = Path(folder)
    (place / "valid").mkdir()
    (place / "damaged").mkdir()
    sample = samples(place / "valid")[name]
    sample.read(sample.path)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    outcomes = collections.Counter()
    for case in range(cases):
        rng = np.random.default_rng((seed, case))
        path = sample.write_damaged(place / "damaged", random_edits(rng), rng.random())
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        try:
            sample.read(path)
            outcomes["read"] += 1
        except (ValueError, OSError) as error:
            outcomes["refused for want of memory" if "llocate" in str(error) else "refused"] += 1
        except BaseException as error:
            raise SystemExit(f"{name}: case {case} of seed {seed} raised {error!r}") from error
    faulthandler.cancel_dump_traceback_later()
    print(f"{name}: {cases} cases, {dict(outcomes)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="of all formats together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=None, metavar="NAME")
    parser.add_argument("--worker", nargs=2, metavar=("NAME", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        return worker(given.worker[0], given.cases, given.seed, given.worker[1])
    from tests.fuzz.damage import samples

    with tempfile.TemporaryDirectory() as folder:
        names = given.only or list(samples(folder))
    failed = []
    for name in names:
        place = tempfile.mkdtemp(prefix="fuzz-")
        command = [sys.executable, "-m", "tests.fuzz.run", "--worker", name, place]
        command += ["--cases", str(given.cases // len(names)), "--seed", str(given.seed)]
        done = subprocess.run(command, check=False)
        if done.returncode:
            failed.append(f"{name} ended with {done.returncode}: see {place}/damaged")
        else:
            shutil.rmtree(place)
    print("\n".join(failed) or "all went well")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
