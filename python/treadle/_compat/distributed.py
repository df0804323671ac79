"""Private parts of distributed."""

from __future__ import annotations

from typing import Any

from treadle._compat import Contact, Library

__all__ = ["IMPORTED_WHEN_RUN", "LIBRARY"]

#: Packages that functions of a module import only when they run.
IMPORTED_WHEN_RUN = {
    "distributed.shuffle._merge": "dask.dataframe",
    "distributed.shuffle._shuffle": "dask.dataframe",
}

_EXTENSION = "serve what clients of distributed ask the scheduler for"
_MESSAGE = "write and read what distributed puts into messages"
_COMM = "have distributed connect to its addresses"
_TRANSPORT = "carry the messages of Dask's own processes"
_SHUFFLE = "run P2P shuffles"
_STEPS = "keep groups, spans and computations of tasks"
_EXCHANGE = "exchange values with workers of Dask"
_BROADCAST = "send values to many of Dask's own workers"
_HOSTED = "move the rows of Dask's own P2P shuffles"

LIBRARY = Library(
    "distributed",
    oldest="2025.11.0",
    newest="2026.8.0",
    requirement="distributed>=2025.11",
    contacts={
        "ALL_TASK_STATES": Contact(
            "distributed.scheduler:ALL_TASK_STATES", "count tasks by their states"
        ),
        "ArrayRechunkSpec": Contact("distributed.shuffle._rechunk:ArrayRechunkSpec", _SHUFFLE),
        "AsyncTaskGroup": Contact(
            "distributed._async_taskgroup:AsyncTaskGroup",
            "run background tasks of extensions and plugins",
            ("call_later", "call_soon", "stop"),
        ),
        "Backend": Contact("distributed.comm.registry:Backend", _COMM),
        "BaseListener": Contact("distributed.comm.core:BaseListener", _TRANSPORT),
        "BaseTCPBackend": Contact("distributed.comm.tcp:BaseTCPBackend", _TRANSPORT),
        "Broker": Contact("distributed.broker:Broker", "publish events of topics"),
        "Comm": Contact("distributed.comm.core:Comm", _COMM),
        "CollectTaskMetaDataPlugin": Contact(
            "distributed.scheduler:CollectTaskMetaDataPlugin",
            "collect the metadata of tasks",
            ("transition", "update_graph"),
        ),
        "CommClosedError": Contact("distributed.comm.core:CommClosedError", _COMM),
        "Computation": Contact("distributed.scheduler:Computation", _STEPS, ("code", "groups")),
        "ConnectionPool": Contact("distributed.core:ConnectionPool", _EXCHANGE),
        "Connector": Contact("distributed.comm.core:Connector", _COMM),
        "DaskPickler": Contact(
            "distributed.protocol.pickle:_DaskPickler",
            "pickle objects of h5py and netCDF4",
            ("reducer_override",),
        ),
        "DataFrameShuffleSpec": Contact(
            "distributed.shuffle._shuffle:DataFrameShuffleSpec", _SHUFFLE
        ),
        "EventExtension": Contact("distributed.event:EventExtension", _EXTENSION),
        "FatalCommClosedError": Contact("distributed.comm.core:FatalCommClosedError", _TRANSPORT),
        "MemorySamplerExtension": Contact(
            "distributed.diagnostics.memory_sampler:MemorySamplerExtension", _EXTENSION
        ),
        "MemoryState": Contact(
            "distributed.scheduler:MemoryState", "say what memory workers use", ("sum",)
        ),
        "MultiLockExtension": Contact("distributed.multi_lock:MultiLockExtension", _EXTENSION),
        "P2PBarrierTask": Contact("distributed.shuffle._core:P2PBarrierTask", _SHUFFLE),
        "P2PConsistencyError": Contact(
            "distributed.shuffle._exceptions:P2PConsistencyError", _SHUFFLE
        ),
        "P2POutOfDiskError": Contact("distributed.shuffle._exceptions:P2POutOfDiskError", _SHUFFLE),
        "PublishExtension": Contact("distributed.publish:PublishExtension", _EXTENSION),
        "QueueExtension": Contact("distributed.queues:QueueExtension", _EXTENSION),
        "SchedulerInfo": Contact(
            "distributed.objects:SchedulerInfo", "describe a cluster", ("_repr_html_",)
        ),
        "SemaphoreExtension": Contact(
            "distributed.semaphore:SemaphoreExtension", _EXTENSION, ("_check_lease_timeout",)
        ),
        "Serialize": Contact("distributed.protocol.serialize:Serialize", _MESSAGE),
        "Serialized": Contact("distributed.protocol.serialize:Serialized", _MESSAGE),
        "ShuffleClosedError": Contact(
            "distributed.shuffle._exceptions:ShuffleClosedError", _SHUFFLE
        ),
        "ShuffleSchedulerPlugin": Contact(
            "distributed.shuffle._scheduler_plugin:ShuffleSchedulerPlugin",
            _HOSTED,
            (
                *("barrier", "get", "get_or_create", "restart", "restrict_task", "transition"),
                *("_clean_on_scheduler", "_fail_on_workers", "_raise_if_barrier_unknown"),
                *("_raise_if_task_not_processing", "_restart_shuffle", "_retrieve_spec"),
                *("_ensure_output_tasks_are_non_rootish", "_set_restriction"),
            ),
        ),
        "ShuffleSpec": Contact("distributed.shuffle._core:ShuffleSpec", _SHUFFLE),
        "SpecCluster": Contact(
            "distributed.deploy.spec:SpecCluster",
            "be a cluster that Dask's tools know",
            ("_memory_per_worker", "_threads_per_worker", "adapt"),
        ),
        "Split": Contact("distributed.shuffle._rechunk:Split", _SHUFFLE),
        "SplitAxes": Contact("distributed.shuffle._rechunk:SplitAxes", _SHUFFLE),
        "SplitAxis": Contact("distributed.shuffle._rechunk:SplitAxis", _SHUFFLE),
        "TaskStreamPlugin": Contact(
            "distributed.diagnostics.task_stream:TaskStreamPlugin",
            "select the runs of a task stream",
            ("collect",),
        ),
        "TaskGroup": Contact(
            "distributed.scheduler:TaskGroup", _STEPS, ("add_duration", "add_type", "done")
        ),
        "TaskPrefix": Contact("distributed.scheduler:TaskPrefix", _STEPS, ("remove_group",)),
        "TaskState": Contact(
            "distributed.scheduler:TaskState", _STEPS, ("add_dependency", "set_nbytes")
        ),
        "SystemMonitor": Contact(
            "distributed.system_monitor:SystemMonitor", "serve `Worker.monitor`"
        ),
        "ThreadPoolExecutor": Contact(
            "distributed.threadpoolexecutor:ThreadPoolExecutor",
            "run the methods of actors, and serve `Worker.executors`",
        ),
        "ToPickle": Contact("distributed.protocol.serialize:ToPickle", _MESSAGE),
        "VariableExtension": Contact("distributed.variable:VariableExtension", _EXTENSION),
        "WorkerStartTimeoutError": Contact(
            "distributed.client:WorkerStartTimeoutError", "raise what `wait_for_workers` raises"
        ),
        "backends": Contact("distributed.comm.registry:backends", _COMM),
        "barrier_key": Contact("distributed.shuffle._core:barrier_key", _HOSTED),
        "benchmark_disk": Contact("distributed.worker:benchmark_disk", "benchmark the hardware"),
        "benchmark_memory": Contact(
            "distributed.worker:benchmark_memory", "benchmark the hardware"
        ),
        "benchmark_network": Contact(
            "distributed.worker:benchmark_network", "benchmark the hardware"
        ),
        "clean_exception": Contact(
            "distributed.core:clean_exception", "raise what a message has of an exception"
        ),
        "client_logger": Contact("distributed.client:logger", "log where its clients log"),
        "current_client": Contact(
            "distributed.client:_current_client", "have unpickled actors find their client"
        ),
        "decompress": Contact("distributed.protocol.compression:decompress", _BROADCAST),
        "del_global_client": Contact(
            "distributed.client:_del_global_client", "leave the list of clients"
        ),
        "close_global_client": Contact(
            "distributed.client:_close_global_client", "close the last client when a script ends"
        ),
        "dumps": Contact("distributed.protocol.pickle:dumps", _MESSAGE),
        "ensure_concrete_host": Contact("distributed.comm.utils:ensure_concrete_host", _TRANSPORT),
        "error_message": Contact("distributed.core:error_message", _HOSTED),
        "from_frames": Contact("distributed.comm.utils:from_frames", _TRANSPORT),
        "gather_from_workers": Contact("distributed.utils_comm:gather_from_workers", _EXCHANGE),
        "get_global_client": Contact(
            "distributed.client:_get_global_client", "find the last client"
        ),
        "get_plugin_name": Contact(
            "distributed.diagnostics.plugin:_get_plugin_name", "name plugins as it does"
        ),
        "get_versions": Contact("distributed.versions:get_versions", "compare versions"),
        "id_from_key": Contact("distributed.shuffle._core:id_from_key", _HOSTED),
        "is_dumpable": Contact(
            "distributed.protocol.serialize:_is_dumpable", "see what can be an event"
        ),
        "merge_and_deserialize": Contact(
            "distributed.protocol.serialize:merge_and_deserialize", _BROADCAST
        ),
        "merge_memoryviews": Contact("distributed.protocol.utils:merge_memoryviews", _TRANSPORT),
        "merge_unpack": Contact("distributed.shuffle._merge:merge_unpack", _SHUFFLE),
        "offload_executor": Contact(
            "distributed.utils:_offload_executor", "serve `Worker.executors`"
        ),
        "pack_data": Contact("distributed.utils_comm:pack_data", "put values in the place of keys"),
        "parse_host_port": Contact("distributed.comm.addressing:parse_host_port", _TRANSPORT),
        "parse_timedelta": Contact("distributed.utils:_parse_timedelta", "read times as it does"),
        "process_preloads": Contact(
            "distributed.preloading:process_preloads",
            "run preloads of workers, nannies and schedulers",
        ),
        "rechunk_unpack": Contact("distributed.shuffle._rechunk:rechunk_unpack", _SHUFFLE),
        "rectangles": Contact(
            "distributed.diagnostics.task_stream:rectangles", "draw the runs of a task stream"
        ),
        "run_actor": Contact("distributed.worker:_run_actor", "call methods of actors"),
        "security_loaded": Contact(
            "distributed.client:_maybe_call_security_loader",
            "ask what `distributed.client.security-loader` gives for an address",
        ),
        "serialize": Contact("distributed.protocol.serialize:serialize", _MESSAGE),
        "shuffle_unpack": Contact("distributed.shuffle._shuffle:shuffle_unpack", _SHUFFLE),
        "split_axes": Contact("distributed.shuffle._rechunk:split_axes", _SHUFFLE),
        "task_stream_figure": Contact(
            "distributed.dashboard.components.scheduler:task_stream_figure",
            "draw the runs of a task stream",
        ),
        "thread_state": Contact(
            "distributed.threadpoolexecutor:thread_state", "serve `secede` and `rejoin`"
        ),
        "to_frames": Contact("distributed.comm.utils:to_frames", _TRANSPORT),
        "unparse_host_port": Contact("distributed.comm.addressing:unparse_host_port", _TRANSPORT),
        "wait_of_distributed": Contact(
            "distributed.client:_wait", "recognise what `wait` hands to `Client.sync`"
        ),
        "worker_module": Contact("distributed.worker", "hide its frames in tracebacks"),
        "worker_memory": Contact("distributed.worker_memory", "be imported before workers fork"),
        "worker_here": Contact("distributed.worker:_worker_cvar", "serve `get_worker`"),
        "write_state": Contact(
            "distributed.cluster_dump:write_state", "write what `dump_cluster_state` writes"
        ),
    },
)


def __getattr__(name: str) -> Any:
    found = LIBRARY.find(name)
    globals()[name] = found
    return found
