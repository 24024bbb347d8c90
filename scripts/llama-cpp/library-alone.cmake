# Included by cmake right after `project(llama.cpp)`. The package's own list switches this one on by force in the cache,
# where no -D reaches it; an ordinary variable stands before the cache. What it leaves out is long to compile, and only
# llama.cpp's own programs use it.
set(LLAMA_BUILD_COMMON OFF)
