# Included by cmake right after `project(llama.cpp)`.

# The package's own list switches this one on by force in the cache, where no setting reaches it; an ordinary variable stands
# before the cache. What it leaves out is long to compile, and only llama.cpp's own programs use it.
set(LLAMA_BUILD_COMMON OFF)

# gcc 12's `_tile_loadconfig` tells the compiler of eight of the 64 bytes that it reads, so that what is written into the others
# just before is taken for needless and left out; a tile of no rows then ends every quantised model with SIGILL. An empty
# statement that may change the whole configuration keeps the compiler from that. Where the source is another, nothing is done.
set(amx "${CMAKE_CURRENT_SOURCE_DIR}/ggml/src/ggml-cpu/amx/mmq.cpp")
set(called "    _tile_loadconfig(&tc);\n")
set(cured "    __asm__ volatile(\"\" : \"+m\"(tc));\n${called}")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND EXISTS "${amx}")
    file(READ "${amx}" source)
    string(FIND "${source}" "${cured}" already)
    string(FIND "${source}" "${called}" place)
    if(already EQUAL -1 AND NOT place EQUAL -1)
        string(REPLACE "${called}" "${cured}" source "${source}")
        file(WRITE "${amx}" "${source}")
        message(STATUS "AMX: the tile configuration is written before it is loaded")
    elseif(already EQUAL -1)
        message(STATUS "AMX: `${amx}` is not as expected and stays as it is")
    endif()
endif()
