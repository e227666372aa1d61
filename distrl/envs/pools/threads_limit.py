"""Limits on the threads that numeric libraries start in a worker process."""

import os
import sys

_VARIABLES = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS",
    "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "PJRT_NPROC",  # XLA's
)  # fmt: skip


def apply(count: int) -> None:
    """Limits BLAS, OpenMP, XLA and PyTorch to `count` threads, in this process and its children.

    Environment variables reach libraries that are loaded later, threadpoolctl (if installed) those
    that are loaded already.

    Args:
      count: number of threads; 0: no limit.
    """
    if count == 0:
        return
    for name in _VARIABLES:
        os.environ[name] = str(count)
    if count == 1:
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    try:
        import threadpoolctl
    except ImportError:
        pass  # then only the variables
    else:
        threadpoolctl.threadpool_limits(count)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)
