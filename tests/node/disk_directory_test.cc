// Who may see and change what lies on disk: modes of what is made, and directories that are refused untouched.
#include "store/node/disk/files/disk_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include "store/node/machine/disk_path.h"
#include "tests/node/disk_fixture.h"

namespace kv {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr uid_t kOther = 65534;

mode_t mode_of(const fs::path& path) {
  struct stat status {};
  EXPECT_EQ(::lstat(path.c_str(), &status), 0) << path;
  return status.st_mode & 07777;
}

class DiskDirectoryTest : public DiskTest {
 protected:
  DiskDirectoryTest() : umask_(::umask(0)) {}  // the kindest world: what protects is asked for by name
  ~DiskDirectoryTest() override { ::umask(umask_); }

  /// Opens `at`, which must be refused with EPERM or another error, say why, and stay as it was.
  void expect_refused(const fs::path& at, int error, const std::string& said) {
    const auto opened = DiskDirectory::open(at, /*read_only=*/false);
    ASSERT_FALSE(opened) << at;
    EXPECT_EQ(opened.error().code.value(), error) << opened.error();
    EXPECT_THAT(opened.error().text, HasSubstr(said));
    why = opened.error().text;
    EXPECT_FALSE(fs::exists(at / "FORMAT"));
    EXPECT_FALSE(fs::exists(at / "LOCK"));
  }

  std::string why;  ///< What the last refusal said.

 private:
  mode_t umask_;
};

TEST_F(DiskDirectoryTest, WhatIsMadeIsForItsOwnerAlone) {
  {
    const auto disk = open();
    ASSERT_FALSE(write(*disk, 1, 4, 5000));
    ASSERT_FALSE(disk->flush());
  }
  EXPECT_EQ(mode_of(path), 0700u);
  EXPECT_EQ(mode_of(path / "db"), 0700u);
  EXPECT_EQ(mode_of(path / "FORMAT"), 0600u);
  EXPECT_EQ(mode_of(path / "LOCK"), 0600u);
}

TEST_F(DiskDirectoryTest, WhatAnEarlierVersionLeftReadableIsClosed) {
  { open(); }
  fs::permissions(path, fs::perms(0755));
  fs::permissions(path / "db", fs::perms(0755));
  { open(); }
  EXPECT_EQ(mode_of(path), 0755u) << "as the operator made it";
  EXPECT_EQ(mode_of(path / "db"), 0700u);
}

TEST_F(DiskDirectoryTest, OnlyTheDirectoryItselfIsMadeAndNothingAboveIt) {
  const fs::path typo = root / "dsik" / "kv";
  expect_refused(typo, ENOENT, (root / "dsik").string() + " is not there: is the name right, is its disk mounted?");
  EXPECT_FALSE(fs::exists(root / "dsik"));
  EXPECT_THAT(new_disk_path(root / "new" / ""), HasSubstr("is not there yet; the node makes it, on the file system"));
  EXPECT_TRUE(DiskDirectory::open(root / "new" / "", false));
  EXPECT_EQ(new_disk_path(root / "new"), "");
  EXPECT_EQ(check_disk_path(root / "new"), "");
  std::ofstream(root / "file") << "mine";
  EXPECT_EQ(check_disk_path(root / "file"), "is no directory");
  EXPECT_THAT(check_disk_path(root / "file" / "kv"), HasSubstr("file is no directory"));
  EXPECT_EQ(check_disk_path("made-here"), "") << "in the working directory, which is there";
}

TEST_F(DiskDirectoryTest, ALinkIsRefused) {
  const fs::path real = root / "real", link = root / "link";
  fs::create_directory(real);
  fs::permissions(real, fs::perms::owner_all);
  fs::create_directory_symlink(real, link);
  expect_refused(link, ELOOP, link.string() + ": is a symbolic link");
  expect_refused(link.string() + "/", ELOOP, "is a symbolic link");
  EXPECT_TRUE(fs::is_empty(real));
  EXPECT_TRUE(DiskDirectory::open(real, false));
}

TEST_F(DiskDirectoryTest, LinksInsideAreNotFollowed) {
  const fs::path elsewhere = root / "elsewhere";
  std::ofstream(elsewhere) << "irreplaceable";
  fs::create_directory(path);
  fs::permissions(path, fs::perms::owner_all);
  for (const char* const name : {"LOCK", "FORMAT.new", ".probe", "db"}) {
    fs::create_symlink(elsewhere, path / name);
    EXPECT_FALSE(DiskDirectory::open(path, false)) << name;
    fs::remove_all(path / name);
  }
  std::ifstream in(elsewhere);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), "irreplaceable");
}

TEST_F(DiskDirectoryTest, ADirectoryThatOthersMayWriteIsRefused) {
  fs::create_directory(path);
  for (const mode_t mode : {0770u, 0777u, 0702u, 01777u}) {
    fs::permissions(path, fs::perms(mode));
    char text[16];
    std::snprintf(text, sizeof text, "mode %04o", mode);
    expect_refused(path, EPERM, text);
    EXPECT_THAT(why, HasSubstr(path.string()));
    EXPECT_THAT(why, HasSubstr("user " + std::to_string(::geteuid())));
    EXPECT_THAT(why, HasSubstr("at most 0755"));
    EXPECT_EQ(mode_of(path), mode) << "left as it was";
  }
  fs::permissions(path, fs::perms(0755));
  EXPECT_TRUE(DiskDirectory::open(path, false));
}

TEST_F(DiskDirectoryTest, ADatabaseThatOthersMayWriteIsRefused) {
  { open(); }
  fs::permissions(path / "db", fs::perms(0777));
  EXPECT_THAT(DiskDirectory::open(path, false).error().text, HasSubstr((path / "db").string() + ": belongs to user"));
}

TEST_F(DiskDirectoryTest, ADirectoryOfAnotherUserIsRefusedByRootToo) {
  if (::geteuid() == 0) {
    fs::create_directory(path);
    fs::permissions(path, fs::perms::owner_all);
    ASSERT_EQ(::chown(path.c_str(), kOther, kOther), 0);
    expect_refused(path, EPERM, "belongs to user " + std::to_string(kOther));
    ASSERT_EQ(::chown(path.c_str(), 0, 0), 0);
    { open(); }
    ASSERT_EQ(::chown((path / "db").c_str(), kOther, kOther), 0);
    EXPECT_THAT(DiskDirectory::open(path, false).error().text, HasSubstr("belongs to user " + std::to_string(kOther)));
  } else {
    expect_refused("/usr", EPERM, "belongs to user 0");
  }
}

/// An operator looks, as root, into the directory of the node's user.
TEST_F(DiskDirectoryTest, AToolThatOnlyReadsMayLookAtAnotherUsersDirectory) {
  { open(); }
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(path.c_str(), kOther, kOther), 0);
  } else {
    fs::permissions(path, fs::perms(0777));
  }
  EXPECT_TRUE(DiskDirectory::open(path, /*read_only=*/true));
  fs::create_directory_symlink(path, root / "link");
  EXPECT_FALSE(DiskDirectory::open(root / "link", /*read_only=*/true));
}

}  // namespace
}  // namespace kv
