"""What a model says about one of its inputs or outputs."""

from __future__ import annotations

from tuner_job.api.base import Model


class TensorSpec(Model):
    """Name, element type and dimensions of a model's input or output."""

    name: str
    """Any text at all: `input:0`, `onnx::Conv_1`, `../x`. Never used as a file name."""
    dtype: str
    """numpy's name (`float32`, `int64`, `bool`; `bfloat16` and `float8_…` as ml_dtypes names them), or `string`."""
    dims: tuple[int | str | None, ...] | None = None
    """Per axis: its fixed size, the name of its dynamic size, or None for an unnamed dynamic one. None: the rank is unknown."""

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape, if every axis is fixed."""
        if self.dims is None:
            return None
        sizes = tuple(size for size in self.dims if isinstance(size, int))
        return sizes if len(sizes) == len(self.dims) else None

    def __str__(self) -> str:
        """`float32 [batch, 3, ?]`, for messages."""
        if self.dims is None:
            return f"{self.dtype} of any shape"
        return f"{self.dtype} [{', '.join('?' if size is None else str(size) for size in self.dims)}]"
