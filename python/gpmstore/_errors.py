"""The exceptions of the package, by error code."""

from ._core import ErrorCode, set_error_classes


class Error(Exception):
    """What GPMStore raises; `code` says what kind of thing went wrong, the text what exactly.

    What a single operation of a batch came to is a value (`Result`), and no exception.
    """

    code: ErrorCode


class InvalidArgumentError(Error, ValueError):
    """An argument, option or array that can't be used, or a store that is closed."""

    code = ErrorCode.INVALID_ARGUMENT


class NotFoundError(Error, FileNotFoundError):
    """The file or device does not exist."""

    code = ErrorCode.NOT_FOUND


class ExistsError(Error, FileExistsError):
    """Creating over something that exists."""

    code = ErrorCode.EXISTS


class BusyError(Error):
    """The pool is in use by another store or process; or the call would wait for itself."""

    code = ErrorCode.BUSY


class NoSpaceError(Error):
    """The medium, or the pool's maximum, has no room left."""

    code = ErrorCode.NO_SPACE


class DamagedError(Error):
    """Not a pool, truncated, corrupted, or of another version."""

    code = ErrorCode.DAMAGED


class UnsupportedError(Error):
    """This build, machine, medium or process (a fork) can't do it."""

    code = ErrorCode.UNSUPPORTED


class IoError(Error, OSError):
    """The operating system reported an error."""

    code = ErrorCode.IO


class GpuError(Error, RuntimeError):
    """The CUDA runtime reported an error."""

    code = ErrorCode.GPU


set_error_classes({kind.code: kind for kind in Error.__subclasses__()})  # which _core raises
