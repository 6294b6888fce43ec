//! Checks who may change a file or replace it. The rule is that of `ssh` for its own files: only
//! the user and root.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::access_list::{self, Writer};
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
    /// A user or a group that the access list names.
    Listed(Writer),
}

impl std::fmt::Display for OtherWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Owner(id) | Self::Listed(Writer::User(id)) => write!(f, "user {id}"),
            Self::Group(id) | Self::Listed(Writer::Group(id)) => write!(f, "group {id}"),
            Self::Anybody => f.write_str("any user"),
        }
    }
}

/// Who may access a file or folder, as the system says it.
#[derive(Debug)]
pub struct Access {
    metadata: Metadata,
    /// Users and groups of its access list that may write. The mode does not name them.
    listed: Vec<Writer>,
}

impl Access {
    /// Access to what is at `path`, behind links.
    ///
    /// # Errors
    ///
    /// When the system cannot say it.
    pub fn of(path: &Path) -> io::Result<Self> {
        Ok(Self {
            metadata: std::fs::metadata(path)?,
            listed: access_list::writers(path)?,
        })
    }

    /// Access to an open file.
    ///
    /// # Errors
    ///
    /// When the system cannot say it.
    pub fn of_open(file: &File) -> io::Result<Self> {
        Ok(Self {
            metadata: file.metadata()?,
            listed: access_list::writers_of_open(file)?,
        })
    }

    /// Access to a link itself, which belongs to its owner alone: it has no mode and no access
    /// list.
    fn of_link(path: &Path) -> io::Result<Self> {
        Ok(Self {
            metadata: path.symlink_metadata()?,
            listed: Vec::new(),
        })
    }

    /// Returns who else may write: the owner, everybody, a user or a group of the access list, or
    /// the group, checked in this order. In a folder with the sticky bit, such as `/tmp`, only the
    /// folder's owner may replace files of others.
    pub fn other_writer(&self) -> Option<OtherWriter> {
        const GROUP_WRITES: u32 = 0o020;
        const OTHERS_WRITE: u32 = 0o002;
        const STICKY: u32 = 0o1000;
        let metadata = &self.metadata;
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
        let lists = Lists::of_system();
        let other = self.listed.iter().find(|listed| match listed {
            Writer::User(id) => *id != 0 && *id != user,
            Writer::Group(id) => !lists.is_private(*id, user),
        });
        if let Some(other) = other {
            return Some(OtherWriter::Listed(*other));
        }
        let group_writes = mode & GROUP_WRITES != 0 && !lists.is_private(group, user);
        group_writes.then_some(OtherWriter::Group(group))
    }
}

/// The system's lists of users and groups. Groups from a directory service are not in them, so
/// they never count as private.
struct Lists {
    /// `/etc/group`.
    groups: String,
    /// `/etc/passwd`.
    users: String,
}

impl Lists {
    fn of_system() -> Self {
        Self {
            groups: std::fs::read_to_string("/etc/group").unwrap_or_default(),
            users: std::fs::read_to_string("/etc/passwd").unwrap_or_default(),
        }
    }

    /// True if `group` is the private group of `user` or of root. Such a group has the user's name,
    /// is the user's first group, and has no other member. Systems with such groups let new files
    /// be group-writable.
    fn is_private(&self, group: u32, user: u32) -> bool {
        // Fields of a group: name, password, id, members. Of a user: name, password, id, group.
        let groups = entries(&self.groups, 2, group);
        let users = entries(&self.users, 3, group);
        let ([listed], [owner]) = (&groups[..], &users[..]) else {
            return false;
        };
        let is_trusted = number(owner, 2).is_some_and(|id| id == user || id == 0);
        let members = listed.get(3).copied().unwrap_or_default();
        let has_others = members
            .split(',')
            .any(|name| !name.is_empty() && name != owner[0] && name != "root");
        is_trusted && listed[0] == owner[0] && !has_others
    }
}

/// The lines of a list whose field at `place` is `id`, each as its fields.
fn entries(list: &str, place: usize, id: u32) -> Vec<Vec<&str>> {
    list.lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .filter(|fields| number(fields, place) == Some(id))
        .collect()
}

/// The field at `place`, a number.
fn number(fields: &[&str], place: usize) -> Option<u32> {
    fields.get(place)?.parse().ok()
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
            let mode = access.metadata.mode() & 0o7777;
            let who = if other == OtherWriter::Anybody {
                "o"
            } else {
                "g"
            };
            format!("{its} is {mode:o} (`chmod {who}-w` takes that right away")
        }
        OtherWriter::Listed(_) => {
            let its = match of {
                Some(of) => format!("the access list of {of}"),
                None => "its access list".to_owned(),
            };
            format!("{its} names them (`setfacl -b` removes the list")
        }
    };
    Some(format!("may be {done} by {other}: {why}"))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const USERS: &str = "\
root:x:0:0::/root:/bin/sh
ann:x:1000:1000::/home/ann:/bin/sh
ben:x:1001:100::/home/ben:/bin/sh
cat:x:1002:1002::/home/cat:/bin/sh
dan:x:1003:1003::/:/bin/sh
eve:x:1004:1003::/:/bin/sh
";
    const GROUPS: &str = "\
root:x:0:
ann:x:1000:
users:x:100:
cat:x:1002:ann
dan:x:1003:
shared:x:2000:
";

    #[test]
    fn a_private_group_is_named_like_its_one_member() {
        let lists = Lists {
            groups: GROUPS.to_owned(),
            users: USERS.to_owned(),
        };
        assert!(lists.is_private(1000, 1000), "ann's own");
        assert!(
            lists.is_private(0, 0) && lists.is_private(0, 1000),
            "root's"
        );
        assert!(!lists.is_private(1000, 1001), "ann's is not ben's");
        assert!(
            !lists.is_private(100, 1001),
            "`users` is ben's first group and not his own"
        );
        assert!(!lists.is_private(1002, 1002), "ann is in cat's group too");
        assert!(
            !lists.is_private(1003, 1003),
            "dan's is eve's first group too"
        );
        assert!(!lists.is_private(2000, 1000), "an empty group");
        assert!(!lists.is_private(7, 1000), "a group that is not listed");
        let empty = Lists {
            groups: String::new(),
            users: String::new(),
        };
        assert!(!empty.is_private(1000, 1000));
    }

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
        assert!(
            [None, Some(OtherWriter::Group(group))].contains(&of(&file, 0o775)),
            "as this machine's lists say"
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

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_that_its_access_list_gives_to_another() {
        use crate::access_list::tests::list;

        const NONE: u32 = u32::MAX;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("libmine.so");
        fs::write(&path, "").unwrap();
        let give = |path: &Path, mask: u32| {
            let entries = [
                [1, 7, NONE],
                [2, 7, 4321],
                [4, 5, NONE],
                [16, mask, NONE],
                [32, 5, NONE],
            ];
            rustix::fs::setxattr(
                path,
                "system.posix_acl_access",
                &list(&entries),
                rustix::fs::XattrFlags::empty(),
            )
        };
        // Some file systems have no access lists.
        if give(&path, 7).is_err() {
            return;
        }
        let found = Found {
            named: path.clone(),
            path: path.clone(),
        };
        let check = || {
            let file = Access::of_open(&File::open(&path).unwrap()).unwrap();
            check(&found, &file, "--flag")
        };
        let say = || {
            let folder = path.parent().unwrap().to_string_lossy().into_owned();
            check().unwrap_err().to_string().replace(&folder, "FOLDER")
        };
        assert_eq!(
            say(),
            "plugin `FOLDER/libmine.so` may be changed by user 4321: its access list names them (`setfacl -b` removes the list; `--flag` accepts it)"
        );
        give(&path, 5).unwrap();
        check().unwrap();
        give(path.parent().unwrap(), 7).unwrap();
        assert_eq!(
            say(),
            "plugin `FOLDER/libmine.so` may be replaced by user 4321: the access list of the folder `FOLDER` names them (`setfacl -b` removes the list; `--flag` accepts it)"
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
