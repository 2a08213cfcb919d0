"""Builds the native kernels where a C++ compiler is; without one leanbayes runs on torch alone."""

import re
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FOLDER = Path("src/leanbayes/kernels")

KERNELS = Extension(
    "leanbayes.kernels.libkernels",
    sources=[str(FOLDER / "kernels.cpp")],
    depends=[str(FOLDER / name) for name in ("rank1_kernels.h", "window_kernels.h")],
    extra_compile_args=["-O3", "-ffast-math", "-fopenmp", "-fvisibility=hidden", "-g0"],
    extra_link_args=["-fopenmp"],  # and no -ffast-math, which would link flush-to-zero in
    optional=True,
)


class BuildKernels(build_ext):
    """A library with a plain C interface: one file serves every version of Python."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []


class AnyPython(bdist_wheel):
    """The wheel depends on the platform, not on the version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


def long_description(readme: Path) -> str:
    """README without pictures and links that lead into the repository: PyPI has no such files."""
    text = re.sub(r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n*", "", readme.read_text(encoding="utf-8"))
    return re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", text)


if __name__ == "__main__":
    setup(
        ext_modules=[KERNELS],
        cmdclass={"build_ext": BuildKernels, "bdist_wheel": AnyPython},
        long_description=long_description(Path("README.md")),
        long_description_content_type="text/markdown",
    )
