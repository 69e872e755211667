# The installed tree, used as an outside project would: one staging folder, consumers with both
# compilers against both libraries, by CMake package and by pkg-config. Only where both libraries
# are built, and not with sanitizers, which a consumer would have to share.

if(NOT FABRIC_SHARED OR NOT FABRIC_SANITIZE STREQUAL "")
  return()
endif()

set(package_dir ${CMAKE_CURRENT_LIST_DIR})
set(stage ${PROJECT_BINARY_DIR}/stage)
set(build_in ${CMAKE_CURRENT_BINARY_DIR}/package)

add_test(NAME package.install
         COMMAND ${CMAKE_COMMAND} -DBUILD=${PROJECT_BINARY_DIR} -DSTAGE=${stage}
                 -P ${package_dir}/stage.cmake)
set_tests_properties(package.install PROPERTIES LABELS unit TIMEOUT 120 FIXTURES_SETUP stage)

foreach(compiler g++ clang++)
  foreach(linkage static shared)
    foreach(via find_package pkg_config)
      set(test package.${via}.${linkage}.${compiler})
      add_test(NAME ${test}
               COMMAND ${CMAKE_COMMAND} -DCOMPILER=${compiler} -DLINKAGE=${linkage} -DSTAGE=${stage}
                       -DBUILD=${build_in}/${test} -P ${package_dir}/${via}.cmake)
      set_tests_properties(${test} PROPERTIES LABELS unit TIMEOUT 180 FIXTURES_REQUIRED stage)
    endforeach()
  endforeach()
endforeach()

# Every symbol that the installed headers declare links against the shared library; a library that
# hides some is found out.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
foreach(test links_every_public_symbol links_every_public_symbol.planted)
  string(REGEX MATCH "planted" planted ${test})
  add_test(NAME package.${test}
           COMMAND Python3::Interpreter ${package_dir}/symbols.py --stage ${stage}
                   --build ${build_in}/${test} $<$<BOOL:${planted}>:--planted> COMMAND_EXPAND_LISTS)
  set_tests_properties(package.${test} PROPERTIES LABELS unit TIMEOUT 120 FIXTURES_REQUIRED stage)
endforeach()

# The optional component.
if(FABRIC_HAS_ETCD)
  foreach(linkage static shared)
    set(test package.etcd.${linkage})
    add_test(NAME ${test}
             COMMAND ${CMAKE_COMMAND} -DCOMPILER=${CMAKE_CXX_COMPILER} -DLINKAGE=${linkage}
                     -DSTAGE=${stage} -DBUILD=${build_in}/${test} -DCONSUMER=etcd_consumer
                     -P ${package_dir}/find_package.cmake)
    list(APPEND etcd_tests ${test})
  endforeach()
  add_test(NAME package.etcd.links_every_public_symbol
           COMMAND Python3::Interpreter ${package_dir}/symbols.py --stage ${stage}
                   --build ${build_in}/etcd_symbols --component etcd)
  set_tests_properties(${etcd_tests} package.etcd.links_every_public_symbol
                       PROPERTIES LABELS unit TIMEOUT 180 FIXTURES_REQUIRED stage)
endif()

add_test(NAME package.exports_only_fabric
         COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} -DLIBRARY=$<TARGET_FILE:fabric_shared>
                 -P ${package_dir}/exports.cmake)
set_tests_properties(package.exports_only_fabric PROPERTIES LABELS unit TIMEOUT 60)

if(FABRIC_HAS_VERBS AND CMAKE_GENERATOR STREQUAL "Ninja")
  add_test(NAME package.builds_without_verbs
           COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DBUILD=${build_in}/without_verbs
                   -DCOMPILER=${CMAKE_CXX_COMPILER} -DLIBRARY=$<TARGET_FILE:fabric_static>
                   -DNM=${CMAKE_NM} -P ${package_dir}/without_verbs.cmake)
  set_tests_properties(package.builds_without_verbs PROPERTIES LABELS unit TIMEOUT 180)
endif()
