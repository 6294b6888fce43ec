//! Checks who may change a file or replace it. A file is refused if another user owns it, or if a
//! group or everybody may write. Users that an access list names show in the group's rights.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::find::Found;

/// Most links on the way to a file, as in Linux.
const MOST_LINKS: usize = 40;

/// Somebody other than this user and root who may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherWriter {
    /// The owner, by user id.
    Owner(u32),
    /// A group that may write, by group id.
    Group(u32),
    /// Everybody.
    Anybody,
}

impl std::fmt::Display for OtherWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Owner(id) => write!(f, "user {id}"),
            Self::Group(id) => write!(f, "group {id}"),
            Self::Anybody => f.write_str("any user"),
        }
    }
}

/// Who may access a file or folder, as the system says it.
#[derive(Debug)]
pub struct Access(Metadata);

impl Access {
    /// Access to what is at `path`, behind links.
    ///
    /// # Errors
    ///
    /// When the system cannot say it.
    pub fn of(path: &Path) -> io::Result<Self> {
        std::fs::metadata(path).map(Self)
    }

    /// Access to an open file.
    ///
    /// # Errors
    ///
    /// When the system cannot say it.
    pub fn of_open(file: &File) -> io::Result<Self> {
        file.metadata().map(Self)
    }

    /// Access to a link itself, which belongs to its owner alone.
    fn of_link(path: &Path) -> io::Result<Self> {
        path.symlink_metadata().map(Self)
    }

    /// Returns who else may write. In a folder with the sticky bit, such as `/tmp`, only the
    /// folder's owner may replace files of others. A group with the number of the user is the
    /// user's own: systems with such groups let new files be group-writable.
    pub fn other_writer(&self) -> Option<OtherWriter> {
        const GROUP_WRITES: u32 = 0o020;
        const OTHERS_WRITE: u32 = 0o002;
        const STICKY: u32 = 0o1000;
        let metadata = &self.0;
        let mode = metadata.mode();
        let owner = metadata.uid();
        let group = metadata.gid();
        let user = rustix::process::geteuid().as_raw();
        if owner != 0 && owner != user {
            return Some(OtherWriter::Owner(owner));
        }
        if metadata.is_symlink() || (metadata.is_dir() && mode & STICKY != 0) {
            return None;
        }
        if mode & OTHERS_WRITE != 0 {
            return Some(OtherWriter::Anybody);
        }
        let is_own = group == 0 || group == user;
        (mode & GROUP_WRITES != 0 && !is_own).then_some(OtherWriter::Group(group))
    }
}

/// The folders and links through which the system reaches a path.
#[derive(Debug, Default, PartialEq, Eq)]
struct Way {
    /// Folders in which it looks up a name, the first one first.
    folders: Vec<PathBuf>,
    /// Links that it follows.
    links: Vec<PathBuf>,
}

impl Way {
    /// The way to the file at `path`.
    fn to(path: &Path) -> io::Result<Self> {
        let mut way = Self::default();
        let mut at = PathBuf::from("/");
        let mut ahead = parts(&std::path::absolute(path)?);
        while let Some(part) = ahead.pop_front() {
            match Path::new(&part).components().next() {
                Some(Component::ParentDir) => {
                    at.pop();
                }
                Some(Component::Normal(name)) => {
                    if !way.folders.contains(&at) {
                        way.folders.push(at.clone());
                    }
                    let next = at.join(name);
                    if next.symlink_metadata()?.is_symlink() {
                        let mut target = parts(&next.read_link()?);
                        target.append(&mut ahead);
                        ahead = target;
                        way.links.push(next);
                        if way.links.len() > MOST_LINKS {
                            return Err(io::Error::other(
                                "too many links lead from one to the next",
                            ));
                        }
                    } else {
                        at = next;
                    }
                }
                Some(Component::RootDir) => at = PathBuf::from("/"),
                Some(Component::CurDir | Component::Prefix(_)) | None => {}
            }
        }
        Ok(way)
    }
}

fn parts(path: &Path) -> VecDeque<OsString> {
    path.components()
        .map(|part| part.as_os_str().to_owned())
        .collect()
}

/// Refuses the open file of a plugin, if somebody else may change it, or replace it: from a folder
/// above it or above a link on the way to it, or by such a link.
///
/// # Errors
///
/// When somebody else may. The message says who and where; `accept` is the flag that allows such a
/// file.
pub fn check(plugin: &Found, file: &Access, accept: &str) -> Result<()> {
    let Found { named, path } = plugin;
    if let Some(why) = why_unsafe(file, "changed", None) {
        bail!("plugin `{}` {why}; `{accept}` accepts it)", path.display());
    }
    let way = Way::to(named)
        .with_context(|| format!("cannot examine the way to `{}`", named.display()))?;
    for folder in way.folders.iter().rev() {
        let access =
            Access::of(folder).with_context(|| format!("cannot examine `{}`", folder.display()))?;
        let of = format!("the folder `{}`", folder.display());
        if let Some(why) = why_unsafe(&access, "replaced", Some(&of)) {
            // A folder that is not above the file itself holds a link to it.
            let shown = if path.starts_with(folder) {
                path
            } else {
                named
            };
            bail!("plugin `{}` {why}; `{accept}` accepts it)", shown.display());
        }
    }
    for link in &way.links {
        let access = Access::of_link(link)
            .with_context(|| format!("cannot examine `{}`", link.display()))?;
        let of = format!("the link `{}`", link.display());
        if let Some(why) = why_unsafe(&access, "replaced", Some(&of)) {
            bail!("plugin `{}` {why}; `{accept}` accepts it)", named.display());
        }
    }
    Ok(())
}

/// Says that a file may be `done` by somebody else, and what to do about it; `None` if it may not.
/// `of` names the folder or link by which that is possible, and is `None` for the file itself.
fn why_unsafe(access: &Access, done: &str, of: Option<&str>) -> Option<String> {
    let other = access.other_writer()?;
    let why = match other {
        OtherWriter::Owner(_) => {
            format!("{} is theirs (load a copy of your own", of.unwrap_or("it"))
        }
        OtherWriter::Group(_) | OtherWriter::Anybody => {
            let its = of.map_or_else(|| "its mode".to_owned(), |of| format!("the mode of {of}"));
            let mode = access.0.mode() & 0o7777;
            let who = if other == OtherWriter::Anybody {
                "o"
            } else {
                "g"
            };
            format!("{its} is {mode:o} (`chmod {who}-w` takes that right away")
        }
    };
    Some(format!("may be {done} by {other}: {why}"))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn modes_of_files_and_folders() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("libmine.so");
        fs::write(&file, "").unwrap();
        let of = |path: &Path, mode: u32| {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            Access::of(path).unwrap().other_writer()
        };
        assert_eq!(of(&file, 0o755), None);
        assert_eq!(
            of(&file, 0o1757),
            Some(OtherWriter::Anybody),
            "the sticky bit of a file means nothing"
        );
        assert_eq!(
            (of(folder.path(), 0o1777), of(folder.path(), 0o757)),
            (None, Some(OtherWriter::Anybody))
        );
        let group = fs::metadata(&file).unwrap().gid();
        let is_own = group == 0 || group == rustix::process::geteuid().as_raw();
        assert_eq!(
            of(&file, 0o775),
            (!is_own).then_some(OtherWriter::Group(group))
        );
    }

    #[test]
    fn what_another_user_owns() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("libmine.so");
        fs::write(&path, "").unwrap();
        // Only root can change a file's owner.
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let found = Found {
            named: path.clone(),
            path: path.clone(),
        };
        let check = || check(&found, &Access::of(&path).unwrap(), "--flag");
        let say = || {
            let error = check().unwrap_err().to_string();
            error.replace(
                &*folder.path().canonicalize().unwrap().to_string_lossy(),
                "FOLDER",
            )
        };
        std::os::unix::fs::chown(&path, Some(4321), None).unwrap();
        assert_eq!(
            say(),
            "plugin `FOLDER/libmine.so` may be changed by user 4321: it is theirs (load a copy of your own; `--flag` accepts it)"
        );
        std::os::unix::fs::chown(&path, Some(0), Some(4321)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o775)).unwrap();
        assert_eq!(
            say(),
            "plugin `FOLDER/libmine.so` may be changed by group 4321: its mode is 775 (`chmod g-w` takes that right away; `--flag` accepts it)"
        );
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        check().unwrap();
        std::os::unix::fs::chown(folder.path(), Some(4321), None).unwrap();
        assert_eq!(
            say(),
            "plugin `FOLDER/libmine.so` may be replaced by user 4321: the folder `FOLDER` is theirs (load a copy of your own; `--flag` accepts it)"
        );
    }

    #[test]
    fn the_way_goes_through_links() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let at = |name: &str| root.join(name);
        fs::create_dir_all(at("real/inner")).unwrap();
        fs::create_dir(at("open")).unwrap();
        fs::write(at("real/inner/libmine.so"), "").unwrap();
        std::os::unix::fs::symlink("../real/./inner", at("open/folder")).unwrap();
        std::os::unix::fs::symlink(at("open/folder/libmine.so"), at("liblink.so")).unwrap();
        let way = Way::to(&at("liblink.so")).unwrap();
        let folders: Vec<_> = way
            .folders
            .iter()
            .filter(|folder| folder.starts_with(&root))
            .collect();
        assert_eq!(
            folders,
            [&root, &at("open"), &at("real"), &at("real/inner")]
        );
        assert_eq!(way.links, [at("liblink.so"), at("open/folder")]);
        std::os::unix::fs::symlink("circle", at("circle")).unwrap();
        assert!(Way::to(&at("circle")).is_err() && Way::to(&at("absent")).is_err());
    }
}
