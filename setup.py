"""What pyproject.toml cannot say: the optional C scanner, and two packages from two folders.

`optional=True`: without a compiler the install succeeds and perfkit uses the pure-Python scanner,
which gives the same rows (tests/sources/test_scan.py compares the two).

`dashboards/` installs as `perfkit_dashboards` (package-dir in pyproject.toml); `find` only knows folders.
"""

from setuptools import Extension, find_packages, setup

dashboards = ["perfkit_dashboards"] + [f"perfkit_dashboards.{name}" for name in find_packages("dashboards")]

setup(
    packages=find_packages(include=["perfkit", "perfkit.*"]) + dashboards,
    ext_modules=[
        Extension(
            "perfkit.sources._scan",
            sources=["perfkit/sources/_scan.c"],
            extra_compile_args=["-O3", "-fno-strict-aliasing"],
            optional=True,
        )
    ],
)
