"""Follows torch's CUDA memory from inside an engine: a JSON line at each change, to VOICES_PROBE_DIR/<pid>.jsonl.

Put this directory on PYTHONPATH of the engine that is looked into. It reads counters and allocates nothing on the card.
What is still the same after five seconds is written with its segments, to <pid>.segments.json.
"""

import json
import os
import sys
import threading
import time


def _follow() -> None:
    last, since, noted = None, 0.0, None
    path = os.path.join(os.environ["VOICES_PROBE_DIR"], f"{os.getpid()}.jsonl")
    while True:
        time.sleep(0.2)
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "cuda") or not hasattr(torch.cuda, "memory_stats_as_nested_dict"):
            continue
        try:
            if not torch.cuda.is_initialized():
                continue
            stats = torch._C._cuda_memoryStats(torch.cuda.current_device())
            free, total = torch.cuda.mem_get_info()
        except Exception:  # noqa: S112 - the engine is still importing, or ending
            continue
        seen = {
            "reserved": stats["reserved_bytes"]["all"]["current"],
            "reserved_small": stats["reserved_bytes"]["small_pool"]["current"],
            "allocated": stats["allocated_bytes"]["all"]["current"],
            "allocated_peak": stats["allocated_bytes"]["all"]["peak"],
            "reserved_peak": stats["reserved_bytes"]["all"]["peak"],
            "segments": stats["segment"]["all"]["current"],
        }
        if seen != last:
            with open(path, "a") as file:
                file.write(json.dumps({"at": time.time(), "free": free, "total": total, **seen}) + "\n")
            last, since = seen, time.time()
        elif noted != seen and time.time() - since > 5:
            noted = seen
            kept = ("total_size", "allocated_size", "segment_type", "segment_pool_id")
            segments = [{key: one.get(key) for key in kept} for one in torch.cuda.memory_snapshot()]
            with open(path.replace(".jsonl", ".segments.json"), "w") as file:
                json.dump({"at": time.time(), "segments": segments}, file)


if os.environ.get("VOICES_PROBE_DIR"):
    threading.Thread(target=_follow, daemon=True).start()
