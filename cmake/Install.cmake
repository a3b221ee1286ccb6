# `cmake --install build/release [--prefix DIR]`: libraries, headers, the systemd unit, the default configuration. Programs
# install themselves, beside their add_executable().
# A program that links the client needs these libraries and headers; the store's are the daemon's own business.
foreach(target kv_base kv_index kv_transport kv_gpu kv_client kvstore_c)
  if(TARGET ${target})
    install(TARGETS ${target} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
            FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kvstore)
  endif()
endforeach()
# The installed configuration also listens where clients look first: the socket in the unit's RuntimeDirectory.
file(READ deploy/kvstore-node.toml config)
string(REGEX REPLACE "\nlisten = [^\n]*" "" config "${config}")
string(REGEX REPLACE "\n# (listen = [^\n]*)" "\n\\1" config "${config}")
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/kvstore-node.toml CONTENT "${config}" @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kvstore-node.toml DESTINATION ${CMAKE_INSTALL_SYSCONFDIR}/kvstore)
configure_file(deploy/systemd/kvstore-node.service.in ${PROJECT_BINARY_DIR}/kvstore-node.service @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kvstore-node.service DESTINATION ${CMAKE_INSTALL_PREFIX}/lib/systemd/system)
install(FILES deploy/systemd/kvstore.sysusers DESTINATION ${CMAKE_INSTALL_PREFIX}/lib/sysusers.d RENAME kvstore.conf)
install(FILES LICENSE NOTICE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
