"""Output of a child in bounded memory."""

from __future__ import annotations

from collections import deque


class Capture:
    """Keeps the first and the last half of `limit` bytes of whatever is fed to it."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._first = bytearray()
        self._last: deque[bytes] = deque()
        self._last_size = 0
        self._total = 0

    def feed(self, data: bytes) -> None:
        self._total += len(data)
        room = self._half - len(self._first)
        if room > 0:
            self._first += data[:room]
            data = data[room:]
        if data:
            self._last.append(data)
            self._last_size += len(data)
            while self._last_size - len(self._last[0]) >= self._half:
                self._last_size -= len(self._last.popleft())

    def text(self) -> str:
        """As UTF-8; bytes that are none are replaced, and the gap is named."""
        last = b"".join(self._last)[-self._half :]
        gap = self._total - len(self._first) - len(last)
        middle = f"\n[… {gap} bytes left out …]\n".encode() if gap else b""
        return (bytes(self._first) + middle + last).decode(errors="replace")

    def tail(self, characters: int = 4000) -> str:
        """The end of `text()`."""
        return self.text()[-characters:]
