"""Convolution over any neighbourhood, at the speed of a matrix product, in JAX."""
