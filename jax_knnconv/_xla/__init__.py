"""The operations in pure JAX: the fallback where no compiled kernel runs, and the reference for those."""
