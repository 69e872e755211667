# What every target of the project shares: language level, build type, where things land.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()

# Errors and log lines carry __FILE__: relative to the project, so that no home directory
# ends up in a binary and the compiler cache hits across checkouts.
add_compile_options(-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)
