# `cmake --install build/release [--prefix DIR]`: libraries, headers, the systemd unit, the default configuration. Programs install
# themselves, beside their add_executable().
# Everything that is built and installed, without the extras of a test build. deploy/quickstart.sh builds this before an install.
add_custom_target(installed)
foreach(target kvstore-node kvstorectl kvstore-bench kvstore-policies kvstore_verbs kvstore_cuda)  # the modules where they can be built
  if(TARGET ${target})
    add_dependencies(installed ${target})
  endif()
endforeach()
# Programs that link the client need these libraries and headers; the store's are internal to the daemon. find_package(kvstore) gives them
# as kvstore::kvstore (the C ABI), kvstore::client (C++) and its parts.
foreach(target kv_base kv_index kv_transport kv_gpu kv_client kvstore_c)
  if(TARGET ${target})
    install(TARGETS ${target} EXPORT kvstoreTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
            FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kvstore)
    add_dependencies(installed ${target})
    if(NOT target STREQUAL kvstore_c)  # that one is named where it is made
      string(REGEX REPLACE "^kv_" "" name ${target})
      set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
      target_compile_features(${target} INTERFACE cxx_std_20)  # for users that specify no standard
    endif()
  endif()
endforeach()
# Installed headers are included as <kvstore/client/client.h>, because base/ and client/ are not our names outside this tree. So the
# includes in headers begin with kvstore/ there too, and their users need only the folder above.
install(CODE "
  file(GLOB_RECURSE headers \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}/kvstore/*.h\")
  foreach(header IN LISTS headers)
    file(READ \"\${header}\" text)
    string(REGEX REPLACE \"#include \\\"((base|index|transport|gpu|client)/)\" \"#include \\\"kvstore/\\\\1\" text \"\${text}\")
    file(WRITE \"\${header}\" \"\${text}\")
  endforeach()")
install(TARGETS kv_warnings EXPORT kvstoreTargets)  # without a file, but the other targets refer to it
set(packages ${CMAKE_INSTALL_LIBDIR}/cmake/kvstore)
install(EXPORT kvstoreTargets NAMESPACE kvstore:: DESTINATION ${packages})
include(CMakePackageConfigHelpers)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kvstoreConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES cmake/kvstoreConfig.cmake ${PROJECT_BINARY_DIR}/kvstoreConfigVersion.cmake DESTINATION ${packages})
# The installed configuration also listens where clients look first: the socket in the unit's RuntimeDirectory.
file(READ deploy/kvstore-node.toml config)
string(REGEX REPLACE "\nlisten = [^\n]*" "" config "${config}")
string(REGEX REPLACE "\n# (listen = [^\n]*)" "\n\\1" config "${config}")
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/kvstore-node.toml CONTENT "${config}" @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kvstore-node.toml DESTINATION ${CMAKE_INSTALL_SYSCONFDIR}/kvstore)
# Written at install time, for the prefix given then; all destinations are below it.
install(CODE "
  set(PROJECT_VERSION \"${PROJECT_VERSION}\")
  set(CMAKE_INSTALL_LIBDIR \"${CMAKE_INSTALL_LIBDIR}\")
  set(CMAKE_INSTALL_INCLUDEDIR \"${CMAKE_INSTALL_INCLUDEDIR}\")
  cmake_path(ABSOLUTE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY \"\${CMAKE_CURRENT_BINARY_DIR}\" NORMALIZE OUTPUT_VARIABLE prefix)
  cmake_path(APPEND CMAKE_INSTALL_FULL_BINDIR \"\${prefix}\" \"${CMAKE_INSTALL_BINDIR}\")
  cmake_path(APPEND CMAKE_INSTALL_FULL_SYSCONFDIR \"\${prefix}\" \"${CMAKE_INSTALL_SYSCONFDIR}\")
  configure_file(\"${PROJECT_SOURCE_DIR}/deploy/systemd/kvstore-node.service.in\" \"${PROJECT_BINARY_DIR}/kvstore-node.service\" @ONLY)
  foreach(name kvstore kvstore-client)
    configure_file(\"${PROJECT_SOURCE_DIR}/cmake/\${name}.pc.in\" \"${PROJECT_BINARY_DIR}/\${name}.pc\" @ONLY)
  endforeach()")
# For pkg-config: kvstore is the C ABI, kvstore-client the C++ client.
install(FILES ${PROJECT_BINARY_DIR}/kvstore.pc ${PROJECT_BINARY_DIR}/kvstore-client.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${PROJECT_BINARY_DIR}/kvstore-node.service DESTINATION lib/systemd/system)
install(FILES deploy/systemd/kvstore.sysusers DESTINATION lib/sysusers.d RENAME kvstore.conf)
install(FILES LICENSE NOTICE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
