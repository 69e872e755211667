# The library: compiled once, packed twice. Its file is libfabric-lib, because libfabric.so belongs
# to OpenFabrics Interfaces.

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(FABRIC_SODIUM REQUIRED IMPORTED_TARGET libsodium)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)

set(FABRIC_GENERATED_INCLUDE ${PROJECT_BINARY_DIR}/generated/include)
configure_file(include/fabric/version.h.in ${FABRIC_GENERATED_INCLUDE}/fabric/version.h @ONLY)

file(GLOB FABRIC_PUBLIC_HEADERS CONFIGURE_DEPENDS include/fabric/*.h)
file(GLOB_RECURSE FABRIC_SOURCES CONFIGURE_DEPENDS src/*.cc)
list(FILTER FABRIC_SOURCES EXCLUDE REGEX "/src/(swarm|workloads/kv_etcd)/")
if(NOT FABRIC_HAS_VERBS)
  list(FILTER FABRIC_SOURCES EXCLUDE REGEX "${FABRIC_VERBS_SOURCES}")
endif()

add_library(fabric_objects OBJECT ${FABRIC_SOURCES})
fabric_unity(fabric_objects)
target_include_directories(
  fabric_objects
  PUBLIC ${PROJECT_SOURCE_DIR}/include ${FABRIC_GENERATED_INCLUDE}
  PRIVATE ${PROJECT_SOURCE_DIR}/src)
set_target_properties(
  fabric_objects
  PROPERTIES POSITION_INDEPENDENT_CODE ON
             CXX_VISIBILITY_PRESET hidden
             VISIBILITY_INLINES_HIDDEN ON)
target_link_libraries(
  fabric_objects PRIVATE fabric_warnings Threads::Threads PkgConfig::FABRIC_SODIUM
                         fmt::fmt-header-only nlohmann_json::nlohmann_json)

if(FABRIC_HAS_VERBS)
  set_source_files_properties(src/providers/registry.cc PROPERTIES COMPILE_DEFINITIONS
                                                                   FABRIC_HAS_VERBS)
endif()

# fmt and nlohmann_json are headers that stop in our objects. libsodium and threads are linked, so a
# user of the static library needs them at the link and nowhere else.
function(fabric_add_library name kind export_name)
  add_library(${name} ${kind} $<TARGET_OBJECTS:fabric_objects>)
  add_library(fabric-lib::${export_name} ALIAS ${name})
  target_include_directories(
    ${name} INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                      $<BUILD_INTERFACE:${FABRIC_GENERATED_INCLUDE}>
                      $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(${name} INTERFACE cxx_std_20)
  target_link_libraries(${name} PRIVATE Threads::Threads PkgConfig::FABRIC_SODIUM ${CMAKE_DL_LIBS})
  set_target_properties(
    ${name}
    PROPERTIES OUTPUT_NAME fabric-lib
               EXPORT_NAME ${export_name}
               LINKER_LANGUAGE CXX
               VERSION ${PROJECT_VERSION}
               # Before 1.0 every minor version may change the binary interface.
               SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
endfunction()

fabric_add_library(fabric_static STATIC fabric-lib)
if(FABRIC_SHARED)
  fabric_add_library(fabric_shared SHARED shared)
  set(FABRIC_EXPORTS ${PROJECT_SOURCE_DIR}/cmake/exports.map)
  # Threads of the application exit through the library (their writer slots): it stays loaded.
  target_link_options(fabric_shared PRIVATE -Wl,--no-undefined -Wl,-z,nodelete
                      -Wl,--version-script=${FABRIC_EXPORTS})
  set_target_properties(fabric_shared PROPERTIES LINK_DEPENDS ${FABRIC_EXPORTS})
endif()

# Random worlds that watch the promises: for the tool and the tests, not for users of the library.
file(GLOB FABRIC_SWARM_SOURCES CONFIGURE_DEPENDS src/swarm/*.cc)
add_library(fabric_swarm STATIC EXCLUDE_FROM_ALL ${FABRIC_SWARM_SOURCES})
fabric_unity(fabric_swarm)
target_include_directories(fabric_swarm PUBLIC ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(
  fabric_swarm
  PUBLIC fabric_static
  PRIVATE fabric_warnings fmt::fmt-header-only nlohmann_json::nlohmann_json)
