# A build without the verbs network: SOURCE is configured so in BUILD, with COMPILER, and those
# objects are built that differ or may. None of them may have seen a header of libibverbs; a program
# that is linked to them, and for the rest to LIBRARY, has the other networks and nothing of verbs.

function(run out)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE printed ERROR_VARIABLE complaint
                  RESULT_VARIABLE code)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${ARGN}: ${code}\n${printed}${complaint}")
  endif()
  set(${out} "${printed}" PARENT_SCOPE)
endfunction()

run(configured ${CMAKE_COMMAND} -S ${SOURCE} -B ${BUILD} -G Ninja -DCMAKE_CXX_COMPILER=${COMPILER}
    -DCMAKE_BUILD_TYPE=Debug -DFABRIC_VERBS=OFF -DFABRIC_WERROR=ON -DFABRIC_TESTS=none
    -DFABRIC_SHARED=OFF -DFABRIC_TOOLS=OFF -DFABRIC_EXAMPLES=OFF)

run(targets ninja -C ${BUILD} -t targets all)
string(REGEX MATCHALL "[^\n]*/src/providers/(registry|verbs/[a-z_]+)\\.cc\\.o" objects "${targets}")
if(objects MATCHES "verbs/datapath")
  message(FATAL_ERROR "the verbs network is in a build without it")
endif()
run(built ninja -C ${BUILD} ${objects})
run(headers ninja -C ${BUILD} -t deps ${objects})
if(NOT headers MATCHES "providers/shm/open.h" OR headers MATCHES "infiniband")
  message(FATAL_ERROR "headers of libibverbs are needed without the verbs network:\n${headers}")
endif()

list(FILTER objects INCLUDE REGEX "registry")
file(WRITE ${BUILD}/providers.cc "#include <cstdio>\n#include <fabric/fabric.h>\n"
     "int main() { for (const auto& name : fabric::providers()) std::puts(name.c_str()); }\n")
run(linked ${COMPILER} -std=c++20 -I${SOURCE}/include -I${BUILD}/generated/include
    ${BUILD}/providers.cc ${BUILD}/${objects} ${LIBRARY} -lsodium -pthread -ldl
    -o ${BUILD}/providers)
run(providers ${BUILD}/providers)
if(NOT providers MATCHES "shm\n" OR providers MATCHES "verbs")
  message(FATAL_ERROR "networks of a build without verbs: ${providers}")
endif()
run(symbols ${NM} --demangle ${BUILD}/providers)
if(symbols MATCHES "fabric::verbs::VerbsRail")
  message(FATAL_ERROR "something else than the registry reaches the verbs network")
endif()
