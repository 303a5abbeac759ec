"""An experiment: sketches of outputs in place of rounding logs; `__main__` says what is measured."""
