# Every library comes from the system's packages (deploy/install-dependencies.sh).
find_package(Threads REQUIRED)
find_package(Boost 1.81 REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(FlatBuffers NAMES FlatBuffers flatbuffers REQUIRED)  # Debian 12 spells it FlatBuffers; used header-only
find_package(prometheus-cpp REQUIRED)
find_package(CLI11 REQUIRED)
find_package(spdlog REQUIRED)
find_package(ZLIB REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(rocksdb REQUIRED IMPORTED_TARGET rocksdb>=7.8)
pkg_check_modules(systemd REQUIRED IMPORTED_TARGET libsystemd)  # sd_notify
find_program(FLATC flatc REQUIRED)
