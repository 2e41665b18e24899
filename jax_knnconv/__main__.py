"""`python -m jax_knnconv` prints what `doctor` finds; its exit status is 1 if a target does not work."""

import sys

from jax_knnconv.doctor import doctor

report = doctor()
print(report)
sys.exit(0 if report.ok else 1)
