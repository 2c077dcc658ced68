//! Checks that no other user can replace or change a file that the administrator names, as `StrictModes` of sshd
//! does. May hang, like every access to a file.

#![expect(clippy::disallowed_methods, reason = "reads the attributes of files that the administrator names")]

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::lgetxattr;
use rustix::io::Errno;
use rustix::process::geteuid;

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;
/// Largest extended attribute (`XATTR_SIZE_MAX`).
const LARGEST_ACL: usize = 1 << 16;
/// Entries of an ACL for a user and a group that it names, and the bit that permits writing
/// (`linux/posix_acl_xattr.h`).
const ACL_USER: u8 = 0x02;
const ACL_GROUP: u8 = 0x08;
const ACL_WRITE: u8 = 0x02;
/// Maximum number of symbolic links in a path, as in the kernel.
const LINKS: usize = 40;

/// Flag that disables the checks.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct PermissionFlags {
    /// Accept rules, programs in rules and web configs even if other users can change them.
    #[arg(long = "no-strict-permissions")]
    any: bool,
}

impl PermissionFlags {
    /// Returns the permissions that files must have.
    pub const fn required(self) -> FilePermissions {
        if self.any { FilePermissions::Any } else { FilePermissions::Strict }
    }
}

/// The permissions that a file must have to be used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FilePermissions {
    /// Only root and the own user can change the file, or replace a directory or link in its path.
    #[default]
    Strict,
    /// All permissions are accepted.
    Any,
}

impl FilePermissions {
    /// Checks a file and all directories and links that lead to it.
    ///
    /// # Errors
    /// If another user can change one of them, with the command that fixes it; or if one cannot be read.
    pub fn check(self, path: &Path) -> io::Result<()> {
        match self {
            Self::Any => Ok(()),
            Self::Strict => check(path, geteuid().as_raw()),
        }
    }
}

fn check(path: &Path, own: u32) -> io::Result<()> {
    let mut place = PathBuf::from("/");
    verify(&place, &fs::symlink_metadata(&place)?, own)?;
    let mut left = components(&std::path::absolute(path)?);
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        if name == ".." {
            place.pop();
            continue;
        }
        let next = place.join(name);
        let about = fs::symlink_metadata(&next)?;
        verify(&next, &about, own)?;
        not_mounted_by_others(&next, &about, &fs::symlink_metadata(&place)?)?;
        if !about.is_symlink() {
            place = next;
            continue;
        }
        links += 1;
        if links > LINKS {
            return Err(io::Error::other(format!("{} has too many symbolic links", path.display())));
        }
        let target = fs::read_link(&next)?;
        if target.is_absolute() {
            place = PathBuf::from("/");
        }
        for name in components(&target).into_iter().rev() {
            left.push_front(name);
        }
    }
    Ok(())
}

/// Returns the names in a path, including `..`, because a link before it can lead elsewhere.
fn components(path: &Path) -> VecDeque<OsString> {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    names.collect()
}

/// Fails if an entry of a sticky directory, such as `/tmp`, is in another file system: with `fusermount3`, a user can mount one there
/// that reports any owner.
fn not_mounted_by_others(path: &Path, about: &Metadata, parent: &Metadata) -> io::Result<()> {
    if parent.mode() & STICKY == 0 || about.dev() == parent.dev() {
        return Ok(());
    }
    let why = format!(
        "{} is a mount point in a directory of all users, who can mount file systems there (move it; or use --no-strict-permissions)",
        path.display()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

fn verify(path: &Path, about: &Metadata, own: u32) -> io::Result<()> {
    let refused = |why: String, fix: String| {
        let name = path.display();
        let why = format!("{name} {why} ({fix} {name}; or use --no-strict-permissions)");
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    };
    let owner = about.uid();
    if owner != 0 && owner != own {
        return refused(format!("belongs to another user, uid {owner}"), "chown root".to_owned());
    }
    let writable = match about.gid() {
        0 => about.mode() & OTHERS_WRITE,
        _ => about.mode() & (OTHERS_WRITE | GROUP_WRITES),
    };
    // In a sticky directory, such as /tmp, only the owner of an entry can replace it, and each entry of the path is
    // checked. The mode of a link has no effect.
    if about.is_symlink() || about.is_dir() && about.mode() & STICKY != 0 {
        return Ok(());
    }
    if writable != 0 {
        let mode = about.mode() & 0o7777;
        return refused(format!("is writable for other users, mode {mode:04o}"), "chmod go-w".to_owned());
    }
    // In a file with an ACL, these bits of the mode limit all its entries.
    if about.mode() & GROUP_WRITES != 0 && acl_admits_others(path, own)? {
        return refused("is writable for other users by its ACL".to_owned(), "setfacl -b".to_owned());
    }
    Ok(())
}

/// Returns whether the POSIX ACL of a file has an entry with which another user or group may write.
fn acl_admits_others(path: &Path, own: u32) -> io::Result<bool> {
    let mut buffer = vec![0; LARGEST_ACL];
    let acl = match lgetxattr(path, "system.posix_acl_access", buffer.as_mut_slice()) {
        Ok(length) => &buffer[..length],
        Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    // A version of four bytes, then eight bytes for each entry: kind, permissions, ID.
    Ok(acl.get(4..).unwrap_or_default().as_chunks().0.iter().any(|entry| admits_others(*entry, own)))
}

fn admits_others([kind, _, permissions, _, id @ ..]: [u8; 8], own: u32) -> bool {
    let id = u32::from_le_bytes(id);
    let is_other = id != 0 && (kind == ACL_GROUP || kind == ACL_USER && id != own);
    is_other && permissions & ACL_WRITE != 0
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    const OTHER: u32 = 4002;

    struct Place(tempfile::TempDir);

    impl Place {
        fn new() -> Self {
            let place = Self(tempfile::tempdir().unwrap());
            fs::create_dir(place.path("a")).unwrap();
            fs::write(place.path("a/file"), "").unwrap();
            place
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn chmod(&self, name: &str, mode: u32) {
            fs::set_permissions(self.path(name), Permissions::from_mode(mode)).unwrap();
        }

        /// Returns the reason why a file is refused, without the path of the directory.
        fn refusal(&self, name: &str) -> Option<String> {
            let error = FilePermissions::Strict.check(&self.path(name)).err()?;
            Some(error.to_string().replace(&format!("{}/", self.0.path().display()), ""))
        }
    }

    #[test]
    fn file_of_root_below_a_sticky_directory_is_accepted() {
        let place = Place::new();
        assert_eq!(place.refusal("a/file"), None);
        place.chmod("a", 0o1777);
        assert_eq!(place.refusal("a/file"), None);
    }

    #[test]
    fn writable_file_and_directory_are_refused_with_a_fix() {
        let place = Place::new();
        place.chmod("a/file", 0o666);
        let text = "a/file is writable for other users, mode 0666 (chmod go-w a/file; or use --no-strict-permissions)";
        assert_eq!(place.refusal("a/file").as_deref(), Some(text));
        assert!(FilePermissions::Any.check(&place.path("a/file")).is_ok());
        place.chmod("a/file", 0o644);
        place.chmod("a", 0o777);
        let text = "a is writable for other users, mode 0777 (chmod go-w a; or use --no-strict-permissions)";
        assert_eq!(place.refusal("a/file").as_deref(), Some(text));
    }

    #[test]
    fn group_may_write_only_if_it_is_roots() {
        let place = Place::new();
        place.chmod("a/file", 0o664);
        chown(place.path("a/file"), None, Some(0)).unwrap();
        assert_eq!(place.refusal("a/file"), None);
        chown(place.path("a/file"), None, Some(OTHER)).unwrap();
        assert!(place.refusal("a/file").unwrap().starts_with("a/file is writable for other users"));
    }

    /// Sets an ACL in which the owner, the group and this entry may read and write; the mask then does, too.
    fn set_acl(path: &Path, kind: u8, permissions: u8, id: u32) {
        let none = u32::MAX;
        let mut entries =
            [(0x01, 6, none), (0x04, 6, none), (0x10, 6, none), (0x20, 0, none), (kind, permissions, id)];
        entries.sort_unstable();
        let entry = |(kind, permissions, id): (u8, u8, u32)| {
            [&[kind, 0, permissions, 0], &id.to_le_bytes()[..]].concat()
        };
        let acl: Vec<u8> =
            2_u32.to_le_bytes().into_iter().chain(entries.into_iter().flat_map(entry)).collect();
        rustix::fs::setxattr(path, "system.posix_acl_access", &acl, rustix::fs::XattrFlags::empty()).unwrap();
    }

    #[test]
    fn acl_may_let_only_root_and_the_own_user_write() {
        let place = Place::new();
        let file = place.path("a/file");
        chown(&file, None, Some(0)).unwrap();
        let text = "a/file is writable for other users by its ACL (setfacl -b a/file; or use --no-strict-permissions)";
        for kind in [ACL_USER, ACL_GROUP] {
            set_acl(&file, kind, 6, OTHER);
            assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o660);
            assert_eq!(place.refusal("a/file").as_deref(), Some(text), "{kind}");
            assert_eq!(check(&file, OTHER).is_ok(), kind == ACL_USER, "it is the own user of this process");
            set_acl(&file, kind, 4, OTHER);
            assert_eq!(place.refusal("a/file"), None, "{kind}: may only read");
            set_acl(&file, kind, 6, 0);
            assert_eq!(place.refusal("a/file"), None, "{kind}: root");
            set_acl(&file, kind, 6, OTHER);
            place.chmod("a/file", 0o640);
            assert_eq!(place.refusal("a/file"), None, "{kind}: the mask permits only reading");
        }
        place.chmod("a", 0o775);
        chown(place.path("a"), None, Some(0)).unwrap();
        set_acl(&place.path("a"), ACL_USER, 6, OTHER);
        assert!(place.refusal("a/file").unwrap().starts_with("a is writable for other users by its ACL"));
    }

    #[test]
    fn owner_must_be_root_or_the_own_user() {
        let place = Place::new();
        for (at, name) in [("a", "a/file"), ("a/file", "a/file")] {
            chown(place.path(at), Some(OTHER), None).unwrap();
            let refusal = place.refusal(name).unwrap();
            assert!(refusal.starts_with(&format!("{at} belongs to another user, uid 4002")), "{refusal}");
            assert!(check(&place.path(name), OTHER).is_ok(), "it is the own user of this process");
            chown(place.path(at), Some(0), None).unwrap();
        }
    }

    #[test]
    fn links_and_the_directories_of_both_ends_are_checked() {
        let place = Place::new();
        fs::create_dir(place.path("b")).unwrap();
        symlink("../a/file", place.path("b/link")).unwrap();
        assert_eq!(place.refusal("b/link"), None);
        for directory in ["a", "b"] {
            place.chmod(directory, 0o777);
            assert!(place.refusal("b/link").unwrap().starts_with(&format!("{directory} is writable")));
            place.chmod(directory, 0o755);
        }
        std::os::unix::fs::lchown(place.path("b/link"), Some(OTHER), None).unwrap();
        assert!(place.refusal("b/link").unwrap().starts_with("b/link belongs to another user"));
        symlink("loop", place.path("loop")).unwrap();
        assert!(place.refusal("loop").unwrap().ends_with("has too many symbolic links"));
    }

    #[test]
    fn missing_file_is_an_error() {
        let error = FilePermissions::Strict.check(&Place::new().path("none")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
