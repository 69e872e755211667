# The optional component fabric-lib::etcd, a directory of members in etcd. A library of its own: the
# core depends on nothing that it needs (libcurl).

set(FABRIC_HAS_ETCD FALSE)
if(FABRIC_ETCD)
  find_package(CURL 7.68 QUIET)  # curl_multi_poll() and curl_multi_wakeup()
  set(FABRIC_HAS_ETCD ${CURL_FOUND})
  if(NOT FABRIC_HAS_ETCD AND FABRIC_ETCD STREQUAL "ON")
    message(FATAL_ERROR "FABRIC_ETCD is ON and there is no libcurl 7.68 or later with its headers: "
                        "install libcurl4-openssl-dev")
  endif()
endif()
if(NOT FABRIC_HAS_ETCD)
  return()
endif()

file(GLOB FABRIC_ETCD_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/workloads/kv_etcd/*.cc)
add_library(fabric_etcd_objects OBJECT ${FABRIC_ETCD_SOURCES})
fabric_unity(fabric_etcd_objects)
target_include_directories(
  fabric_etcd_objects
  PUBLIC ${PROJECT_SOURCE_DIR}/include
  PRIVATE ${PROJECT_SOURCE_DIR}/src)
set_target_properties(
  fabric_etcd_objects
  PROPERTIES POSITION_INDEPENDENT_CODE ON
             CXX_VISIBILITY_PRESET hidden
             VISIBILITY_INLINES_HIDDEN ON)
target_link_libraries(fabric_etcd_objects PRIVATE fabric_warnings Threads::Threads CURL::libcurl
                                                  nlohmann_json::nlohmann_json)

# Only public symbols of the core are used, so each links with either form of it; a program that had
# both forms would have two cores.
function(fabric_add_etcd name kind export_name core)
  add_library(${name} ${kind} $<TARGET_OBJECTS:fabric_etcd_objects>)
  add_library(fabric-lib::${export_name} ALIAS ${name})
  target_link_libraries(${name} PUBLIC ${core} PRIVATE Threads::Threads CURL::libcurl)
  set_target_properties(
    ${name}
    PROPERTIES OUTPUT_NAME fabric-lib-etcd
               EXPORT_NAME ${export_name}
               LINKER_LANGUAGE CXX
               VERSION ${PROJECT_VERSION}
               SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
endfunction()

fabric_add_etcd(fabric_etcd STATIC etcd fabric_static)
if(FABRIC_SHARED)
  fabric_add_etcd(fabric_etcd_shared SHARED etcd-shared fabric_shared)
  target_link_options(fabric_etcd_shared PRIVATE -Wl,--no-undefined
                      -Wl,--version-script=${FABRIC_EXPORTS})
  set_target_properties(fabric_etcd_shared PROPERTIES LINK_DEPENDS ${FABRIC_EXPORTS})
endif()
