"""The published report's program on TensorFlow, with its flags: a worker assigns its variable to the parameter server's.

``--job_name=ps`` and ``--job_name=worker`` as in ``tensor_transfer_throughput.py``, for an interpreter that has
``tensorflow`` (``tensorflow-cpu`` will do). A parameter server fetches the variable from the worker, so both listen.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

# TensorFlow says on standard error what it finds in the machine.
os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}

import tensorflow.compat.v1 as tf

WARM_UP = 3  # assignments before anything counts


def work(target: str, task: int, servers: int, mb: float, iters: int) -> None:
    elements = max(1, round(mb * 1e6 / 4))
    with tf.device(f"/job:ps/task:{task % servers}"):
        params = tf.get_variable(
            f"params{task}", elements, tf.float32, tf.zeros_initializer(), use_resource=False
        )
    with tf.device(f"/job:worker/task:{task}"):
        update = tf.get_variable(
            f"update{task}", elements, tf.float32, tf.ones_initializer(), use_resource=False
        )
    assign = params.assign(update)
    with tf.Session(target) as session:
        session.run(tf.variables_initializer([params, update]))
        for _ in range(WARM_UP):
            session.run(assign.op)
        start = time.perf_counter()
        for _ in range(iters):
            session.run(assign.op)
        seconds = time.perf_counter() - start
        if session.run(params[-1]) != 1.0:
            raise SystemExit("what the parameter server has is not what was sent")
    print(f"transfer rate: {4 * elements * iters / seconds / 1e6:.6f} MB/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ps_hosts", required=True, help="HOST:PORT,…")
    parser.add_argument("--worker_hosts", required=True, help="HOST:PORT,…")
    parser.add_argument("--job_name", "--job", choices=("ps", "worker"), required=True)
    parser.add_argument("--task", type=int, default=0, help="which of the hosts this is")
    parser.add_argument("--data_mb", type=float, default=100)
    parser.add_argument("--iters", type=int, default=100)
    args = parser.parse_args()
    servers, workers = args.ps_hosts.split(","), args.worker_hosts.split(",")
    tf.disable_eager_execution()
    cluster = tf.train.ClusterSpec({"ps": servers, "worker": workers})
    server = tf.train.Server(cluster, job_name=args.job_name, task_index=args.task)
    print(f"listening; TensorFlow {tf.__version__}", flush=True)
    if args.job_name == "ps":
        sys.stdin.read()
    else:
        work(server.target, args.task, len(servers), args.data_mb, args.iters)
    # A server of TensorFlow's has no end.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
