"""Threads that are kept for what comes next: starting one costs as much as its wake-ups.

As many as ever were busy at once; whoever gives them work bounds that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

Task = Callable[[], None]


class Workers:
    """Runs tasks, each at once and in a thread of its own.

    Args:
        name: Of the threads.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._idle = 0
        self._closed = False
        self._lock = threading.Lock()

    def run(self, task: Task) -> None:
        """Begin a task; an error in it ends its thread, and nothing else."""
        with self._lock:
            if self._idle:
                self._idle -= 1
                self._tasks.put(task)
                return
        threading.Thread(
            target=self._work, args=(task,), name=self._name, daemon=True
        ).start()

    def close(self) -> None:
        """Let every thread end after its task; does not wait for them."""
        with self._lock:
            self._closed = True
            for _ in range(self._idle):
                self._tasks.put(None)
            self._idle = 0

    def _work(self, task: Task | None) -> None:
        while task is not None:
            task()
            with self._lock:
                if self._closed:
                    return
                self._idle += 1
            task = self._tasks.get()
