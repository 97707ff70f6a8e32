//! The file itself, before and beside SQLite: whether it may be used at all, and whether the path still leads
//! to the file that is open. Everything that is refused is refused before anything is created.

use std::ffi::CString;
use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use leasehold_core::{Error, ErrorKind};
use rustix::fs::Access;

use crate::schema;

/// Owner tokens are secrets, so only this user may read a file we create.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

/// A path that leads to a file we may use.
#[derive(Clone, Debug)]
pub(crate) struct StoreFile {
    pub(crate) path: PathBuf,
    c_path: CString,
}

/// Which file it is, however it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

impl StoreFile {
    /// Makes the path absolute, so that a change of the working directory does not lead elsewhere.
    pub(crate) fn new(path: &Path) -> Result<Self, Error> {
        let refused = |why: &str| Error::config(format!("sqlite:{}: {why}", path.display()));
        let absolute = std::path::absolute(path)
            .map_err(|source| refused("this is no path of a file: name one").with_source(source))?;
        let c_path = CString::new(absolute.as_os_str().as_bytes())
            .map_err(|source| refused("the path holds a NUL character: remove it").with_source(source))?;
        Ok(Self { path: absolute, c_path })
    }

    /// The same path with an ending, as SQLite names the files beside its own.
    pub(crate) fn beside(&self, ending: &str) -> PathBuf {
        let mut path = self.path.as_os_str().to_owned();
        path.push(ending);
        path.into()
    }

    /// The directory that the file is in.
    pub(crate) fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// Which file the path leads to now; `None` if it leads to none.
    pub(crate) fn identity(&self) -> Option<Identity> {
        let stat = rustix::fs::stat(&*self.c_path).ok()?;
        Some(Identity { device: widened(stat.st_dev), inode: stat.st_ino })
    }

    /// Creates the directories that lead to the file, for this user only.
    pub(crate) fn create_directories(&self) -> Result<(), Error> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(DIRECTORY_MODE)
            .create(self.directory())
            .map_err(|source| self.io_error("its directory could not be created", source))
    }

    /// Checks everything that can be checked without SQLite, and creates the file, empty, if it is missing and
    /// that is wanted. Returns whether it was created.
    pub(crate) fn prepare(&self, create: bool, any_file_system: bool) -> Result<bool, Error> {
        self.prepare_on(create, |path| FileSystem::of(path).filter(|_| !any_file_system))
    }

    fn prepare_on(
        &self,
        create: bool,
        file_system_of: impl Fn(&Path) -> Option<FileSystem>,
    ) -> Result<bool, Error> {
        match fs::metadata(&self.path) {
            Ok(found) => {
                self.check_kind(&found)?;
                self.check_file_system(file_system_of(&self.path))?;
                self.check_header()?;
                self.check_access()?;
                Ok(false)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.check_directory()?;
                self.check_file_system(file_system_of(self.directory()))?;
                if create {
                    return self.create();
                }
                Err(self.refused(
                    "there is no such file: either no lock was ever taken there, or the path is not the one that \
                     the other programs use",
                ))
            }
            Err(error) => Err(self.io_error("the path cannot be followed", error)),
        }
    }

    fn check_kind(&self, found: &Metadata) -> Result<(), Error> {
        if found.is_dir() {
            return Err(self.refused("this is a directory: name a file in it, for instance locks.db"));
        }
        if !found.is_file() {
            return Err(self.refused("this is not an ordinary file: name another"));
        }
        // SQLite keeps its log beside the path, so two paths to one file have two logs and destroy it.
        if found.nlink() > 1 {
            return Err(self.refused(
                "the file has more than one name (hard links), and each would exclude nobody but itself: \
                 remove the other names",
            ));
        }
        if self.is_mount_point() {
            return Err(self.refused(
                "the file is mounted by itself (a container's volume of one file), and its log beside it would \
                 not be shared: mount the directory it is in",
            ));
        }
        Ok(())
    }

    #[cfg(target_os = "linux")]
    fn is_mount_point(&self) -> bool {
        use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
        statx(CWD, &*self.c_path, AtFlags::empty(), StatxFlags::empty())
            .is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    }

    /// Only Linux mounts single files.
    #[cfg(not(target_os = "linux"))]
    #[allow(clippy::unused_self, reason = "the same call as on Linux")]
    fn is_mount_point(&self) -> bool {
        false
    }

    fn check_directory(&self) -> Result<(), Error> {
        if self.path.file_name().is_none() {
            return Err(self.refused("this is no path of a file: name one"));
        }
        // Another process may have created the file by now, so that something is there is not enough.
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.is_symlink()) {
            return Err(self.refused(
                "this is a symbolic link to a file that does not exist: create that, or remove the link",
            ));
        }
        match fs::metadata(self.directory()) {
            Ok(found) if found.is_dir() => Ok(()),
            Ok(_) => Err(self.refused(&format!("{} is not a directory", self.directory().display()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(self.refused(&format!(
                "the directory {} does not exist: create it, or name another",
                self.directory().display()
            ))),
            Err(error) => Err(self.io_error("its directory cannot be looked at", error)),
        }
    }

    fn check_file_system(&self, found: Option<FileSystem>) -> Result<(), Error> {
        let Some(file_system) = found.filter(|found| found.shared) else { return Ok(()) };
        Err(self.refused(&format!(
            "it is on a file system of the type {}, which other machines may share, and locks there exclude \
             nobody reliably: name a file on a local disk, or use a server (redis://…)",
            file_system.name
        )))
    }

    /// Looks at the file's first bytes before SQLite does, which would leave files beside another program's
    /// database.
    fn check_header(&self) -> Result<(), Error> {
        let read = || Header::read(&self.path).map_err(|source| self.io_error("it cannot be read", source));
        match read()? {
            Header::Empty | Header::Ours => Ok(()),
            // A file that is being created looks foreign until its journal is gone; SQLite sorts that out.
            _ if self.beside("-journal").exists() => Ok(()),
            _ => {
                match read()? {
                    Header::Empty | Header::Ours => Ok(()),
                    Header::Newer(version) => Err(schema::newer(&self.path, version)),
                    Header::OtherDatabase => Err(schema::foreign(&self.path)),
                    Header::NoDatabase => Err(self
                        .refused("this is not a SQLite database, so it was left alone: name another file")),
                }
            }
        }
    }

    /// SQLite needs files beside the file. Whether it can write the file itself, it says.
    fn check_access(&self) -> Result<(), Error> {
        let directory = self.directory();
        rustix::fs::access(directory, Access::READ_OK | Access::WRITE_OK).map_err(|source| {
            let what = format!("{} must be readable and writable for this user", directory.display());
            self.io_error(&what, source.into())
        })
    }

    fn create(&self) -> Result<bool, Error> {
        match OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&self.path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(self.io_error("it could not be created", error)),
        }
    }

    /// Takes back a file that was created but could not be filled. A process that has opened it meanwhile sees
    /// at its next operation that its path leads elsewhere.
    pub(crate) fn remove_if_empty(&self) {
        if fs::metadata(&self.path).is_ok_and(|found| found.len() == 0) {
            // Nothing depends on it: an empty file counts as a new one.
            let _ = fs::remove_file(&self.path);
        }
    }

    fn refused(&self, why: &str) -> Error {
        Error::config(format!("sqlite:{}: {why}", self.path.display()))
    }

    fn io_error(&self, what: &str, source: io::Error) -> Error {
        let kind = match source.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::Denied,
            io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename => ErrorKind::Config,
            _ => ErrorKind::Unavailable,
        };
        Error::new(kind, format!("sqlite:{}: {what}: {source}", self.path.display())).with_source(source)
    }
}

/// Device numbers have different widths on different systems.
#[allow(clippy::cast_sign_loss, clippy::cast_lossless, clippy::unnecessary_cast, reason = "only compared")]
fn widened(device: rustix::fs::Dev) -> u64 {
    device as u64
}

/// What the first 100 bytes of a file say.
enum Header {
    Empty,
    Ours,
    Newer(u32),
    OtherDatabase,
    NoDatabase,
}

impl Header {
    /// The database header as <https://www.sqlite.org/fileformat.html> has it.
    fn read(path: &Path) -> io::Result<Self> {
        let mut bytes = Vec::with_capacity(100);
        fs::File::open(path)?.take(100).read_to_end(&mut bytes)?;
        if bytes.is_empty() {
            return Ok(Self::Empty);
        }
        if bytes.len() < 100 || !bytes.starts_with(b"SQLite format 3\0") {
            return Ok(Self::NoDatabase);
        }
        let number = |at: usize| {
            bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_be_bytes)
        };
        let (version, application) = (number(60), number(68));
        Ok(match application {
            schema::APPLICATION_ID if version > schema::VERSION => Self::Newer(version),
            schema::APPLICATION_ID => Self::Ours,
            _ => Self::OtherDatabase,
        })
    }
}

/// The file system that a file is on.
pub(crate) struct FileSystem {
    /// Its type, as people call it.
    pub(crate) name: String,
    /// Whether other machines may use it at the same time.
    pub(crate) shared: bool,
    /// Whether other containers see another file under the same path.
    pub(crate) layered: bool,
}

/// Types by the number that `statfs` gives, and whether other machines may share them. FUSE counts as shared:
/// sshfs, rclone and the folders that virtual machines share with their hosts cannot be told from local ones.
const FILE_SYSTEMS: &[(u32, &str, bool)] = &[
    (0x6969, "NFS", true),
    (0x517B, "SMB", true),
    (0xFF53_4D42, "CIFS", true),
    (0xFE53_4D42, "SMB2", true),
    (0x0102_1997, "9p", true),
    (0x6573_5546, "FUSE", true),
    (0x5346_414F, "AFS", true),
    (0x6B41_4653, "AFS", true),
    (0x00C3_6400, "Ceph", true),
    (0x7461_636F, "OCFS2", true),
    (0x0116_1970, "GFS2", true),
    (0x0BD0_0BD0, "Lustre", true),
    (0x7375_7245, "Coda", true),
    (0x786F_4256, "VirtualBox shared folder", true),
    (0xBACB_ACBC, "VMware shared folder", true),
    (0x4750_4653, "GPFS", true),
    (0x1983_0326, "BeeGFS", true),
    (0xEF53, "ext4", false),
    (0x5846_5342, "XFS", false),
    (0x9123_683E, "Btrfs", false),
    (0x2FC1_2FC1, "ZFS", false),
    (0xF2F5_2010, "F2FS", false),
    (0xCA45_1A4E, "bcachefs", false),
    (0x0102_1994, "tmpfs", false),
    (OVERLAY, "overlay", false),
];

const OVERLAY: u32 = 0x794C_7630;

impl FileSystem {
    /// `None` where the system does not tell.
    #[cfg(target_os = "linux")]
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let number = rustix::fs::statfs(path).ok()?.f_type;
        // The type is 32 bits in a field whose width and sign differ between architectures.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "32 bits are meant")]
        let number = number as u32;
        Some(Self::numbered(number))
    }

    /// Not looked at outside Linux: the documentation asks for a local disk.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn of(_path: &Path) -> Option<Self> {
        None
    }

    fn numbered(number: u32) -> Self {
        let known = FILE_SYSTEMS.iter().find(|(known, ..)| *known == number);
        let name = known.map_or_else(|| format!("{number:#x}"), |(_, name, _)| (*name).to_owned());
        Self { name, shared: known.is_some_and(|(.., shared)| *shared), layered: number == OVERLAY }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_on_a_network_file_system_is_refused_and_not_created() {
        let directory = tempfile::tempdir().unwrap();
        let (new, old) = (directory.path().join("new.db"), directory.path().join("old.db"));
        fs::write(&old, "").unwrap();
        for path in [&new, &old] {
            let file = StoreFile::new(path).unwrap();
            let error = file.prepare_on(true, |_| Some(FileSystem::numbered(0x6969))).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains("NFS"), "{error}");
        }
        assert!(!new.exists());
        let local = StoreFile::new(&new).unwrap();
        assert!(local.prepare_on(true, |_| Some(FileSystem::numbered(0xEF53))).unwrap());
    }

    #[test]
    fn network_file_systems_are_told_from_local_ones() {
        for shared in [0x6969, 0xFF53_4D42, 0x517B, 0x0102_1997, 0x6573_5546] {
            assert!(FileSystem::numbered(shared).shared, "{shared:#x}");
        }
        for local in [0xEF53, 0x0102_1994, OVERLAY, 0x1234_5678] {
            assert!(!FileSystem::numbered(local).shared, "{local:#x}");
        }
    }
}
