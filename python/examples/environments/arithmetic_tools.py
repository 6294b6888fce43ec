"""Tools for python_tools.py: two that calculate."""

from fractions import Fraction


def multiply(a: int, b: int) -> int:
    """Multiplies two whole numbers.

    Args:
        a: The first factor.
        b: The second factor.
    """
    return a * b


def divide(dividend: float, divisor: float, exactly: bool = False) -> str:
    """Divides one number by another.

    Args:
        dividend: The number that is divided.
        divisor: The number that it is divided by.
        exactly: True for a fraction, false for a decimal number.
    """
    return str(Fraction(dividend) / Fraction(divisor) if exactly else dividend / divisor)
