"""Acts by a policy in a process that has nothing else; see test_load_policy.py.

  python acting_policy.py RUN FILE

FILE is a pickle of observations, rewards and firsts, `[steps, batch]`.

Writes FILE.out: a pickle of the actions of a batch, and of one environment alone.
"""

import pickle
import sys
from pathlib import Path

import numpy as np

import distrl

run, asked = sys.argv[1:]
observations, rewards, firsts = pickle.loads(Path(asked).read_bytes())
policy = distrl.load_policy(run, batch_size=observations.shape[1])
single = distrl.load_policy(run)
batched, alone = [], []
for observation, reward, first in zip(observations, rewards, firsts):
    policy.reset(first)
    batched.append(policy(observation, reward))
    if first[0]:
        single.reset()
    alone.append(single(observation[0], reward[0]))
assert not [name for name in sys.modules if name.startswith(("programs", "launch", "envpool"))]
Path(f"{asked}.out").write_bytes(pickle.dumps((np.array(batched), np.array(alone))))
