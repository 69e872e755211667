# cmake -DCOMPILER=... -DLINKAGE=static|shared -DSTAGE=... -DBUILD=... -P pkg_config.cmake
# Builds and runs the consumer with one compiler line, as pkg-config gives it.

cmake_minimum_required(VERSION 3.25)

find_program(pkg_config pkg-config REQUIRED)
find_program(compiler ${COMPILER} REQUIRED)
file(GLOB_RECURSE pc ${STAGE}/*/fabric-lib.pc)
cmake_path(GET pc PARENT_PATH pc_dir)
cmake_path(GET pc_dir PARENT_PATH library_dir)
set(ENV{PKG_CONFIG_PATH} ${pc_dir})

set(options --cflags --libs)
if(LINKAGE STREQUAL "static")
  list(APPEND options --static)
endif()
execute_process(COMMAND ${pkg_config} ${options} fabric-lib OUTPUT_VARIABLE flags
                OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(flags UNIX_COMMAND "${flags}")
if(LINKAGE STREQUAL "static")
  # Both libraries lie in one folder, and a linker that may choose takes the shared one.
  list(TRANSFORM flags REPLACE "^-lfabric-lib$" "-l:libfabric-lib.a")
endif()

file(REMOVE_RECURSE ${BUILD})
file(MAKE_DIRECTORY ${BUILD})
execute_process(
  COMMAND ${compiler} -std=c++20 -Wall -Wextra -Werror ${CMAKE_CURRENT_LIST_DIR}/consumer/main.cc -o
          ${BUILD}/consumer ${flags} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
set(ENV{LD_LIBRARY_PATH} ${library_dir})
execute_process(COMMAND ${BUILD}/consumer COMMAND_ERROR_IS_FATAL ANY)
