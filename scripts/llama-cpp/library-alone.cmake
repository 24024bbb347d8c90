# Included by cmake right after `project(llama.cpp)`. The Python package `llama-cpp-python` sets LLAMA_BUILD_COMMON to ON in
# cmake's cache, even against a -D option; an ordinary variable takes precedence. Only llama.cpp's own programs use its part
# `common`, which takes long to compile.
set(LLAMA_BUILD_COMMON OFF)
