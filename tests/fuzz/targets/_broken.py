"""A target with a bug, to see that bugs are found."""


def check(data: bytes) -> None:
    """Fail for inputs that are neither short nor plain."""
    if len(data) > 2 and data[0] > 0x7F and data[1] & 1:
        raise AssertionError("the bug that has to be found")
