# Included by cmake right after the Python package's `project(llama_cpp)`. Builds llama-bench from the package's source of
# llama.cpp against the library in the folder LIBRARIES, so that llama-bench measures this library. LLAMA_BUILD=OFF switches
# off the package's own targets.
set(SOURCE ${CMAKE_CURRENT_SOURCE_DIR}/vendor/llama.cpp)
set(BUILD_SHARED_LIBS OFF)
set(LLAMA_BUILD_COMMON ON)
# Without OpenSSL, the programs download nothing over HTTPS. Without the prebuilt UI, the build downloads nothing.
set(LLAMA_OPENSSL OFF)
set(LLAMA_USE_PREBUILT_UI OFF)

foreach(name ggml-base ggml-cpu ggml llama)
    add_library(${name} SHARED IMPORTED GLOBAL)
    set_target_properties(${name} PROPERTIES IMPORTED_LOCATION ${LIBRARIES}/lib${name}.so)
    target_include_directories(${name} INTERFACE ${SOURCE}/include ${SOURCE}/ggml/include)
endforeach()
target_link_libraries(ggml INTERFACE ggml-cpu ggml-base)
target_link_libraries(llama INTERFACE ggml)

# The subdirectories expect these definitions.
include(${SOURCE}/cmake/license.cmake)
include(${SOURCE}/cmake/build-info.cmake)
set(LLAMA_BUILD_NUMBER ${BUILD_NUMBER})
set(LLAMA_BUILD_COMMIT ${BUILD_COMMIT})
function(llama_add_compile_flags)
endfunction()

foreach(part vendor common tools/llama-bench)
    add_subdirectory(${SOURCE}/${part} ${part} EXCLUDE_FROM_ALL)
endforeach()
add_custom_target(bench ALL DEPENDS llama-bench)
set_target_properties(llama-bench PROPERTIES BUILD_WITH_INSTALL_RPATH TRUE INSTALL_RPATH ${LIBRARIES})
install(PROGRAMS $<TARGET_FILE:llama-bench> DESTINATION ${SKBUILD_PLATLIB_DIR}/llama_cpp/bin)
