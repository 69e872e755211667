"""The keywords of Engine() and World.open(): the fields of Config, each optional."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from fabric_lib._native import LogLevel, Network

Seconds = float | datetime.timedelta


class Settings(TypedDict, total=False):
    networks: Sequence[Network | str]
    default_timeout: Seconds
    drain_timeout: Seconds
    timeout_max: Seconds
    peer_timeout: Seconds
    lost_timeout: Seconds
    retransmit: Seconds
    ops_max: int
    batches_max: int
    peers_max: int
    regions_max: int
    counters_max: int
    names_per_peer_max: int
    message_bytes_max: int
    message_buffers: int
    message_credits: int
    index_arena_bytes: int
    stripe_bytes_min: int
    stripe_align: int
    bulk_slice_bytes: int
    spin: Seconds
    worker_cpus: Sequence[int]
    reroute: bool
    engine_id: int
    app_info: str
    job_key: str
    log_level: LogLevel
