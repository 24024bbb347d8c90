# Included by cmake right after `project(llama.cpp)`: adds the server to the parts that are built. Its libraries are defined later;
# cmake links by their names.

include("${CMAKE_CURRENT_LIST_DIR}/build-fixes.cmake")

# The server needs this part, which the library does not.
set(LLAMA_BUILD_COMMON ON)
# The server states this as its version. A source without llama.cpp's git history would give `b0-unknown`.
set(LLAMA_BUILD_NUMBER 0)
set(LLAMA_BUILD_COMMIT "${SKBUILD_PROJECT_NAME}-${SKBUILD_PROJECT_VERSION}")
# One program, without libraries beside it.
set(BUILD_SHARED_LIBS OFF)
find_package(Threads REQUIRED)
add_subdirectory(tools/ui)
add_subdirectory(tools/server)
