# What `cmake --install` gives: the program, the public headers, the libraries, and find_package(terrace) with the target
# terrace::terrace. Included last, when all libraries are known.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(libraries GLOBAL PROPERTY TERRACE_LIBRARIES)
add_library(terrace_public INTERFACE)
set_target_properties(terrace_public PROPERTIES EXPORT_NAME terrace)
target_compile_features(terrace_public INTERFACE cxx_std_20)
target_include_directories(terrace_public INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(terrace_public INTERFACE terrace_embed terrace_train terrace_doctor terrace_data terrace_config)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/terrace)
install(TARGETS terrace RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS terrace_public ${libraries} EXPORT terraceTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/terrace DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT terraceTargets NAMESPACE terrace:: DESTINATION ${package})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/terraceConfig.cmake.in
  ${PROJECT_BINARY_DIR}/terraceConfig.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/terraceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/terraceConfig.cmake ${PROJECT_BINARY_DIR}/terraceConfigVersion.cmake
  ${CMAKE_CURRENT_LIST_DIR}/TerraceSystemLibraries.cmake DESTINATION ${package})
