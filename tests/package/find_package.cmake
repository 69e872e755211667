# cmake -DCOMPILER=... -DLINKAGE=static|shared -DSTAGE=... -DBUILD=... [-DCONSUMER=...]
#   -P find_package.cmake
# Configures, builds and runs the consumer against the CMake package of an installed tree.

cmake_minimum_required(VERSION 3.25)

find_program(ninja ninja REQUIRED)
find_program(compiler ${COMPILER} REQUIRED)
if(NOT CONSUMER)
  set(CONSUMER consumer)
endif()
file(REMOVE_RECURSE ${BUILD})
execute_process(
  COMMAND ${CMAKE_COMMAND} -G Ninja -S ${CMAKE_CURRENT_LIST_DIR}/${CONSUMER} -B ${BUILD}
          -DCMAKE_CXX_COMPILER=${compiler} -DCMAKE_PREFIX_PATH=${STAGE} -DLINKAGE=${LINKAGE}
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${BUILD} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${BUILD}/${CONSUMER} COMMAND_ERROR_IS_FATAL ANY)
