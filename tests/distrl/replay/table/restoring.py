"""Loads a table that another process saved, samples it, and saves it again; see test_saving.py.

  python restoring.py FILE    a pickle: kind, config, batch_size, per_item, folder of the table

Writes FILE.out: a pickle with the table's initial info, and the samples.
"""

import pickle
import sys
from pathlib import Path

from distrl.runtime.process_exit import exit_at_once
from tests.support.replay import Replay


def main(path: Path) -> None:
    kind, config, batch_size, per_item, folder, samples = pickle.loads(path.read_bytes())
    replay = Replay(kind, config, batch_size, per_item, saved=folder)
    client = replay.client()
    if kind == "shared":
        client.restore_rng(folder)
    before = client.info()
    client.save(folder.with_name("again"), 30.0)
    sampled = [client.sample(10.0) for _ in range(samples)]
    path.with_suffix(".out").write_bytes(pickle.dumps((before, sampled)))
    replay.close()


main(Path(sys.argv[1]))
exit_at_once(0)  # as nodes do: Reverb's threads may crash a process that ends while they do
