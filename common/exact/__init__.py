"""No rounding error: rational numbers, integer channels, exact discrete noise."""
