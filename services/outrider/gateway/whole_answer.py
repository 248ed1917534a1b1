"""A streamed answer gathered into one message, for GenerateOnce.

Knows GenerateResponse and GenerateOnceResponse, and that one message must hold them all: an answer that outgrows it is ended at once,
not when it is complete. Must not know how the messages come about.
"""

from __future__ import annotations

from outrider.errors import DoesNotFit
from outrider.v1 import generation_pb2 as pb


class WholeAnswer:
    """`add` every message of the stream, then take `message`. max_bytes: most that one message may hold."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._started = pb.Started()
        self._usage = pb.Usage()
        self._samples: dict[int, pb.Sample] = {}
        self._texts: dict[int, list[str]] = {}

    async def add(self, *responses: pb.GenerateResponse) -> None:
        """A coroutine only so that it can stand where a stream's write does. Raises DoesNotFit; a stream's messages are never smaller
        than what they add to the whole."""
        for response in responses:
            self._add(response)

    def _add(self, response: pb.GenerateResponse) -> None:
        self._num_bytes += response.ByteSize()
        if self._num_bytes > self._max_bytes:
            raise DoesNotFit("max_tokens", f"this answer is larger than one message of {self._max_bytes} bytes; stream it with Generate")
        match response.WhichOneof("event"):
            case "started":
                self._started = response.started
            case "delta":
                self._add_delta(response.delta)
            case "finished":
                self._sample(response.finished.index).finished.CopyFrom(response.finished)
            case "done":
                self._usage = response.done.usage

    def message(self) -> pb.GenerateOnceResponse:
        """The whole answer, samples by index."""
        for index, sample in self._samples.items():
            sample.text = "".join(self._texts[index])
        samples = [self._samples[index] for index in sorted(self._samples)]
        return pb.GenerateOnceResponse(started=self._started, samples=samples, usage=self._usage)

    def _add_delta(self, delta: pb.Delta) -> None:
        sample = self._sample(delta.index)
        self._texts[delta.index].append(delta.text)
        sample.token_ids.extend(delta.token_ids)
        sample.origins.extend(delta.origins)
        sample.logprobs.extend(delta.logprobs)

    def _sample(self, index: int) -> pb.Sample:
        if index not in self._samples:
            self._samples[index] = pb.Sample(index=index)
            self._texts[index] = []
        return self._samples[index]
