"""vLLM's real Mooncake connector in both roles, wired as the engine core and the model runner wire it."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from adapters.mooncake.backend import Backend
from adapters.mooncake.gate import CountingQueue, Gate
from adapters.mooncake.sockets import LOOPBACK, fresh_ports
from spec.trace import Configuration

CONNECTOR = "MooncakeStoreConnector"
_ROLES = {"producer": "kv_producer", "consumer": "kv_consumer", "both": "kv_both"}
_UNKNOWN_MESSAGE = b"tailproof-end"
_JOIN_SECONDS = 5.0
_numbers = itertools.count(1)


class _End:
    """An item of a transfer queue that ends the thread which takes it: threads of ended cases must not pile
    up, and vLLM has no way to stop them."""

    def __getattr__(self, name: str) -> Any:
        raise SystemExit


def prepare(vllm_config: Any) -> None:
    """Once per process: vLLM's own CPU stand-ins for CUDA events, and a world of one rank."""
    import vllm.v1.worker.cpu.shm  # noqa: F401
    from vllm.config import set_current_vllm_config
    from vllm.distributed.parallel_state import (
        init_distributed_environment,
        initialize_model_parallel,
        model_parallel_is_initialized,
    )

    if model_parallel_is_initialized():
        return
    with set_current_vllm_config(vllm_config):
        (port,) = fresh_ports(1)
        init_distributed_environment(1, 0, f"tcp://{LOOPBACK}:{port}", 0, "gloo")
        initialize_model_parallel(1, 1, backend="gloo")


def transfer_config(configuration: Configuration, role: str) -> Any:
    """The `KVTransferConfig` of an engine in a store role."""
    from vllm.config import KVTransferConfig

    return KVTransferConfig(
        kv_connector=CONNECTOR,
        kv_role=_ROLES[role],
        kv_load_failure_policy=configuration.load_failures,
        kv_connector_extra_config={
            "lookup_async": configuration.lookup_async,
            "save_decode_cache": configuration.decode_saves,
            "lookup_rpc_port": next(_numbers),
        },
    )


class WorkerRole:
    """The worker's half of the connector, with the memory that it moves bytes in and out of.

    `memory` is a tensor of shape [blocks, bytes], one row a block, shared by all layers `names`.
    """

    def __init__(
        self,
        vllm_config: Any,
        kv_cache_config: Any,
        names: list[str],
        memory: Any,
        backend: Backend,
        gate: Gate,
        receivers: int,
    ) -> None:
        import mooncake.store as client_module
        from vllm.config import set_current_vllm_config
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
        from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
        from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import worker as worker_module

        self._config = vllm_config
        self.gate = gate
        os.environ["VLLM_MOONCAKE_LOAD_RECV_THREADS"] = str(receivers)
        with (
            _replaced(client_module, "MooncakeDistributedStore", lambda: backend.client(gate)),
            _replaced(worker_module, "queue", SimpleNamespace(Queue=CountingQueue)),
            set_current_vllm_config(vllm_config),
        ):
            self.connector: Any = KVConnectorFactory.create_connector(
                vllm_config, KVConnectorRole.WORKER, kv_cache_config
            )
            self.worker: Any = self.connector.connector_worker
            self.connector.register_kv_caches(dict.fromkeys(names, memory))
        self._base, self._row = memory.data_ptr(), memory.stride(0)
        self.receivers = receivers

    def block(self, address: int) -> int:
        """The block that begins at an address."""
        block, rest = divmod(address - self._base, self._row)
        assert rest == 0, "a transfer begins inside a block"
        return int(block)

    def puts_at_rest(self, waiting: int) -> bool:
        """Whether no save runs, `waiting` calls of which stand at the gate."""
        thread = self.worker.kv_send_thread
        if thread is None:
            return True
        return _at_rest(thread.request_queue, waiting, 1)

    def gets_at_rest(self, waiting: int) -> bool:
        """Whether no load runs, `waiting` calls of which stand at the gate."""
        return _at_rest(self.worker.recv_request_queue, waiting, self.receivers)

    @contextlib.contextmanager
    def step(self, output: Any) -> Iterator[Any]:
        """One step of the worker around its forward; yields what it tells the scheduler afterwards."""
        from vllm.config import set_current_vllm_config
        from vllm.distributed.kv_transfer import kv_transfer_state
        from vllm.forward_context import set_forward_context
        from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin

        kv_transfer_state._KV_CONNECTOR_AGENT = self.connector
        with (
            set_current_vllm_config(self._config),
            set_forward_context(None, self._config),
            KVConnectorModelRunnerMixin._get_kv_connector_output(output) as told,
        ):
            yield told

    def close(self, scheduler_side: Any) -> None:
        """End the threads and sockets of both roles and give the client back. Nothing may be held."""
        from vllm.distributed.kv_transfer import kv_transfer_state

        kv_transfer_state._KV_CONNECTOR_AGENT = None
        threads = list(self.worker.kv_recv_threads)
        for _ in threads:
            self.worker.recv_request_queue.put(_End())
        if self.worker.kv_send_thread is not None:
            self.worker.kv_send_thread.request_queue.put(_End())
            threads.append(self.worker.kv_send_thread)
        server, client = self.worker.lookup_server, scheduler_side.client
        server.running = False
        if server.thread.is_alive():
            # A message that it does not know makes it look whether it may run, unless it has just looked.
            client.executor.submit(client.socket.send, _UNKNOWN_MESSAGE).result(_JOIN_SECONDS)
        threads.append(server.thread)
        for thread in threads:
            thread.join(_JOIN_SECONDS)
        client.close()
        client.ctx.term()
        server.close()
        server.ctx.term()
        for queue in (
            self.worker.recv_request_queue,
            *([self.worker.kv_send_thread.request_queue] if self.worker.kv_send_thread else []),
        ):
            queue.unfinished_tasks = 0
        self.connector.shutdown()


def _at_rest(queue: Any, waiting: int, readers: int) -> bool:
    return waiting + queue.idle() == readers and (waiting == readers or queue.empty())


@contextlib.contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    kept = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, kept)
