# Included by cmake right after `project(llama.cpp)`. The package forces this variable on in cmake's cache, where no -D reaches
# it; an ordinary variable takes precedence. Only llama.cpp's own programs use this part, and it takes long to compile.
set(LLAMA_BUILD_COMMON OFF)
