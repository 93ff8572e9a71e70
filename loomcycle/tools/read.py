"""Read: the text of one file of a volume. Specification: tools.md section 3.1."""

from __future__ import annotations

import codecs
from collections.abc import Callable

import msgspec
from msgspec import Struct

from loomcycle.tools.base import CallContext, Repeat, ToolOutput
from loomcycle.tools.files import InvalidCall, open_regular, run_file_tool
from loomcycle.tools.policy import side_effect_class
from loomcycle.volumes import choose, locate

MAX_BYTES = 262144


class ReadInput(Struct):
    path: str | None = None
    volume: str | None = None


_decoder = msgspec.json.Decoder(ReadInput)


class Read:
    """Returns at most the first 262144 bytes, without a marker; bytes that are not UTF-8 become
    U+FFFD, and a character cut by the limit is left out."""

    name = "Read"
    description = (
        "Return the text of a file. Relative paths start at the volume's root. Only the first "
        "262144 bytes of a larger file are returned."
    )
    input_schema = (
        b'{"type":"object","properties":{'
        b'"path":{"type":"string","description":"File to read."},'
        b'"volume":{"type":"string","description":"Volume that holds the file; may be omitted '
        b'when there is a default or only one."}},'
        b'"required":["path"],"additionalProperties":false}'
    )
    repeat = Repeat.SAFE
    side_effect_class = side_effect_class("Read")

    async def call(self, input_json: bytes, context: CallContext) -> ToolOutput:
        def work(request: ReadInput, checkpoint: Callable[[], None]) -> str:
            if not request.path:
                raise InvalidCall("path is required")
            binding = choose(context.plan.volumes, request.volume or "")
            with open_regular(locate(binding, request.path)) as file:
                data = file.read(MAX_BYTES + 1)
            return _text(data)

        return await run_file_tool(_decoder, input_json, work)


def _text(data: bytes) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return decoder.decode(data[:MAX_BYTES], final=len(data) <= MAX_BYTES)
