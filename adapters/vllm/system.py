"""The system "vllm": what this installation is, and a session of it for each configuration."""

from __future__ import annotations

import os

from adapters.protocol import Description, MovedError, Session
from adapters.vllm import boundaries
from adapters.vllm.building import Target
from adapters.vllm.engine import Engine
from adapters.vllm.names import REPLACED, STORE_REPLACED, missing_names
from adapters.vllm.setup import ConfigurationFactory, quiet_environment
from adapters.vllm.side import Side
from spec.trace import Configuration


class VllmSystem:
    """The system "vllm": tier core, and tier store where Mooncake is there.

    Raises:
        MovedError: when this vLLM lacks names that the adapter needs.
    """

    def __init__(self) -> None:
        quiet_environment()
        import torch
        import vllm

        # The exact content is a few thousand words; handing it to threads costs more than it gives.
        torch.set_num_threads(1)

        version = str(vllm.__version__)
        # Resolved, since the parent may have put links before what it wants imported.
        self.origin = os.path.join(os.path.realpath(os.path.dirname(vllm.__file__)), "__init__.py")
        release = boundaries.probe()
        if missing := missing_names(release):
            raise MovedError(version, missing)
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import init_none_hash

        init_none_hash(sha256)
        self.target = Target(version, release, ConfigurationFactory(release))

    def describe(self) -> Description:
        """What it is; `replaced` lists what stands in for parts of the real system."""
        return Description(
            "vllm",
            self.target.version,
            {"core": "ready"},
            REPLACED + STORE_REPLACED,
            boundaries.profiles(self.target.release),
            boundaries.lacks(self.target.release),
            self.target.release.line,
            self.origin,
        )

    def open(self, configuration: Configuration, omit: str) -> Session:
        """A fresh scheduler and cache in the given configuration.

        Raises:
            TraceError: when the configuration needs another tier, or what this version does not have.
            GeometryError: when the layout is refused.
            AdapterError: when vLLM resolves other sizes than the spec does.
        """
        if configuration.store != "off":
            from adapters.vllm.store_session import StoreSession

            return StoreSession(self.target, configuration, omit)
        return Engine(self.target, configuration, omit, Side())
