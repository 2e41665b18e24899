"""Which package the tests test."""

import os
import pathlib
import sysconfig

import pytest

import jax_knnconv


@pytest.mark.skipif("JAX_KNNCONV_REQUIRE_INSTALLED" not in os.environ, reason="`make test` asks for this")
def test_the_installed_package_is_tested():
    assert pathlib.Path(jax_knnconv.__file__).is_relative_to(sysconfig.get_path("platlib"))
