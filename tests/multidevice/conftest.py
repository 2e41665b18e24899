"""These tests need 8 devices; tests/test_multidevice.py starts them so."""

import jax

collect_ignore_glob = [] if jax.device_count() >= 8 else ["test_*.py"]
