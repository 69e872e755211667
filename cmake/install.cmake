# The installed tree: both libraries, the public headers, a CMake package and a pkg-config file.

include(CMakePackageConfigHelpers)

set(FABRIC_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/fabric-lib)
set(installed_libraries fabric_static)
if(FABRIC_SHARED)
  list(APPEND installed_libraries fabric_shared)
endif()

install(TARGETS ${installed_libraries} EXPORT fabric-lib-targets)
# The provider contract is for networks inside this tree: an outside one cannot be registered.
set(installed_headers ${FABRIC_PUBLIC_HEADERS})
list(FILTER installed_headers EXCLUDE REGEX "/provider\\.h$")
if(NOT FABRIC_HAS_ETCD)
  list(FILTER installed_headers EXCLUDE REGEX "/kv_etcd\\.h$")
endif()
install(FILES ${installed_headers} ${FABRIC_GENERATED_INCLUDE}/fabric/version.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/fabric)
install(EXPORT fabric-lib-targets NAMESPACE fabric-lib:: DESTINATION ${FABRIC_PACKAGE_DIR})

configure_package_config_file(
  cmake/fabric-lib-config.cmake.in ${PROJECT_BINARY_DIR}/fabric-lib-config.cmake
  INSTALL_DESTINATION ${FABRIC_PACKAGE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/fabric-lib-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/fabric-lib-config.cmake
              ${PROJECT_BINARY_DIR}/fabric-lib-config-version.cmake
        DESTINATION ${FABRIC_PACKAGE_DIR})

# The .pc file finds its prefix from where it lies, so that an installed tree can be moved.
cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_LIBDIR BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX}
           OUTPUT_VARIABLE FABRIC_PC_LIBDIR)
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX
           BASE_DIRECTORY ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig OUTPUT_VARIABLE FABRIC_PC_PREFIX)
configure_file(cmake/fabric-lib.pc.in ${PROJECT_BINARY_DIR}/fabric-lib.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/fabric-lib.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# A separate component, so that consumers that do not request it do not need libcurl.
if(FABRIC_HAS_ETCD)
  set(installed_etcd fabric_etcd)
  if(FABRIC_SHARED)
    list(APPEND installed_etcd fabric_etcd_shared)
  endif()
  install(TARGETS ${installed_etcd} EXPORT fabric-lib-etcd-targets)
  install(EXPORT fabric-lib-etcd-targets NAMESPACE fabric-lib:: DESTINATION ${FABRIC_PACKAGE_DIR})
  configure_file(cmake/fabric-lib-etcd.pc.in ${PROJECT_BINARY_DIR}/fabric-lib-etcd.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/fabric-lib-etcd.pc
          DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
