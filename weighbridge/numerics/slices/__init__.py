"""Which parts of its operands an operation reads for a part of its results.

A result is cut into boxes of its indices. For a box the table says which box of each operand is needed, so that the
operation on these boxes has, element for element, the bound that the whole has: what a bound counts (terms of a sum) is
never cut, or the bound is multiplied by what was. The value of an element may differ in its last bits, since a library
may add up in another order in another shape. It stays within the bound, so one rounding log gives both the same rounded
result: that is why only strict bounds may be used so.
"""
