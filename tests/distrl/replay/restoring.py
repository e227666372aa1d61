"""Loads a table that another process saved, samples it, and saves it again; see test_saving.py.

  python restoring.py FILE    a pickle: kind, config, batch_size, per_item, folder of the table

Writes FILE.out: a pickle with the table's info at first, and the samples that it gave.
"""

import importlib.util
import pickle
import sys
from pathlib import Path

spec = importlib.util.spec_from_file_location("conftest", Path(__file__).with_name("conftest.py"))
assert spec is not None and spec.loader is not None
conftest = importlib.util.module_from_spec(spec)
spec.loader.exec_module(conftest)


def main(path: Path) -> None:
    kind, config, batch_size, per_item, folder, samples = pickle.loads(path.read_bytes())
    replay = conftest.Replay(kind, config, batch_size, per_item, saved=folder)
    client = replay.client()
    if kind == "shared":
        client.restore_rng(folder)
    before = client.info()
    client.save(folder.with_name("again"), 30.0)
    found = [client.sample(10.0) for _ in range(samples)]
    path.with_suffix(".out").write_bytes(pickle.dumps((before, found)))
    replay.close()


main(Path(sys.argv[1]))
