# Included by cmake right after `project(llama.cpp)`.

# The package forces this variable on in cmake's cache, where no setting reaches it; an ordinary variable takes precedence.
# Only llama.cpp's own programs use this part, and it takes long to compile.
set(LLAMA_BUILD_COMMON OFF)

# gcc 12 declares that `_tile_loadconfig` reads 8 bytes, but it reads 64. So gcc removes the writes of the other bytes, the
# tiles have no rows, and every quantised model ends with SIGILL. An empty asm statement that may change the whole
# configuration prevents that. A source without the expected line stays unchanged.
set(amx "${CMAKE_CURRENT_SOURCE_DIR}/ggml/src/ggml-cpu/amx/mmq.cpp")
set(called "    _tile_loadconfig(&tc);\n")
set(fixed "    __asm__ volatile(\"\" : \"+m\"(tc));\n${called}")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND EXISTS "${amx}")
    file(READ "${amx}" source)
    string(FIND "${source}" "${fixed}" already)
    string(FIND "${source}" "${called}" position)
    if(already EQUAL -1 AND NOT position EQUAL -1)
        string(REPLACE "${called}" "${fixed}" source "${source}")
        file(WRITE "${amx}" "${source}")
        message(STATUS "AMX: the tile configuration is written before it is loaded")
    elseif(already EQUAL -1)
        message(STATUS "AMX: `${amx}` is not as expected and stays as it is")
    endif()
endif()
